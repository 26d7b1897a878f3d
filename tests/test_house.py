"""The house's manners that no linter checks: sizes, names, links, licence, packaging, gate."""

from __future__ import annotations

import ast
import inspect
import pickle
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from hymotion_ray import errors

REPO = Path(__file__).resolve().parent.parent
PACKAGE = REPO / "hymotion_ray"
MAX_LINES = 400
TEXT_SUFFIXES = {
    ".py", ".md", ".toml", ".txt", ".json", ".jsonl", ".yaml", ".yml", ".cfg", ".html", ".js",
    ".mjs", ".css", ".sh", ".csv", "",
}  # fmt: skip


def _tracked() -> list[Path]:
    """Files of the repository, those not yet committed included; the tree itself without git."""
    command = [
        "git",
        "-C",
        str(REPO),
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]
    try:
        listing = subprocess.run(command, capture_output=True, check=True).stdout.decode()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout: which files belong to the project is unknown")
    return [path for name in listing.split("\0") if name and (path := REPO / name).is_file()]


def _modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def _name(path: Path) -> str:
    return path.relative_to(REPO).as_posix()


def test_no_module_is_long():
    lengths = {_name(path): len(path.read_text().splitlines()) for path in _modules()}
    assert {name: lines for name, lines in lengths.items() if lines > MAX_LINES} == {}


def test_every_module_says_what_it_knows():
    silent = [
        _name(path)
        for path in _modules()
        if (source := path.read_text()).strip() and not ast.get_docstring(ast.parse(source))
    ]
    assert silent == []


def test_no_file_is_named_for_nothing():
    drawers = {"utils.py", "util.py", "common.py", "helpers.py", "helper.py", "misc.py"}
    assert [_name(path) for path in _tracked() if path.name in drawers] == []


def test_nothing_is_left_for_later():
    words = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
    found = [
        f"{_name(path)}:{number}"
        for path in _tracked()
        if path.suffix in {".py", ".md", ".yaml", ".toml", ".html", ""} and _is_ours(path)
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if words.search(line)
    ]
    assert found == []


def test_no_machine_paths_or_registry_hosts():
    """The project runs anywhere: no folder of one machine, no package host, in any file of it."""
    hosts = [
        "pypi" + ".org",
        "pythonhosted" + ".org",
        "npmjs" + ".org",
        "download.pytorch" + ".org",
    ]
    folders = ["/wo" + "rk/", "/opt/" + "wheels", "/opt/" + "pypi", "/ro" + "ot/"]
    banned = re.compile("|".join(map(re.escape, [*hosts, *folders])))
    found = [
        f"{_name(path)}:{number}: {match.group()}"
        for path in _tracked()
        if path.suffix in TEXT_SUFFIXES and _is_ours(path)
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if (match := banned.search(line))
    ]
    assert found == []


def _is_ours(path: Path) -> bool:
    return "third_party" not in path.parts and "golden" not in path.parts


def test_large_files_stay_out():
    large = {_name(path) for path in _tracked() if path.stat().st_size > 4 * 1024 * 1024}
    assert large <= {"hymotion_ray/assets/tiny/model.safetensors"}


# --- what users read ------------------------------------------------------------------------------


def _pages() -> list[Path]:
    return [path for path in _tracked() if path.suffix == ".md" and _is_ours(path)]


def test_links_of_the_pages_lead_somewhere():
    broken = []
    for page in _pages():
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            if re.match(r"[a-z]+:|#", target):
                continue
            if not (page.parent / target.split("#")[0]).exists():
                broken.append(f"{_name(page)}: {target}")
    assert broken == []


def test_both_readmes_have_the_same_parts():
    def headings(name: str) -> list[int]:
        text = re.sub(r"```.*?```", "", (REPO / name).read_text(encoding="utf-8"), flags=re.DOTALL)
        return [len(level) for level in re.findall(r"^(#+) ", text, flags=re.MULTILINE)]

    assert headings("README.md") == headings("README.zh-CN.md")


def test_readmes_show_the_same_commands():
    def commands(name: str) -> list[str]:
        blocks = re.findall(r"```(?:bash|sh)\n(.*?)```", (REPO / name).read_text(), flags=re.DOTALL)
        return [line.split("#")[0].rstrip() for block in blocks for line in block.splitlines()]

    assert commands("README.md") == commands("README.zh-CN.md") != []


# --- errors ---------------------------------------------------------------------------------------


def _error_classes() -> list[type[errors.HyMotionError]]:
    members = vars(errors).values()
    return [m for m in members if inspect.isclass(m) and issubclass(m, errors.HyMotionError)]


@pytest.mark.parametrize("kind", _error_classes(), ids=lambda kind: kind.__name__)
def test_errors_survive_the_way_between_processes(kind):
    raised = kind("frames must be 20..360, got 7; ask for 20")
    raised.add_note("seen in row 3")
    back = pickle.loads(pickle.dumps(raised))
    assert type(back) is kind
    assert str(back) == str(raised) == "frames must be 20..360, got 7; ask for 20"
    assert vars(back) == vars(raised)


def test_every_error_for_users_is_in_errors():
    """One of another file would be missed by the test above."""
    family = {kind.__name__ for kind in _error_classes()}
    elsewhere = [
        f"{_name(path)}: {node.name}"
        for path in _modules()
        if path.name != "errors.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
        and {ast.unparse(base).split(".")[-1] for base in node.bases} & family
    ]
    assert elsewhere == []


# --- packaging and gate ---------------------------------------------------------------------------


def test_wheel_holds_every_file_of_the_package(tmp_path):
    tree = tmp_path / "tree"
    for path in _tracked():
        if path.is_relative_to(PACKAGE) or path.parent == REPO:
            copy = tree / path.relative_to(REPO)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, copy)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*command, "--wheel-dir", str(tmp_path), str(tree)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        packed = {name for name in wheel.namelist() if name.startswith("hymotion_ray/")}
        assert any(name.endswith("licenses/LICENSE") for name in wheel.namelist())
    assert packed == {_name(path) for path in _tracked() if path.is_relative_to(PACKAGE)}


def test_make_has_the_promised_targets():
    targets = set(re.findall(r"^([a-z]+):", (REPO / "Makefile").read_text(), flags=re.MULTILINE))
    assert {"demo", "test", "campaign", "format", "lint", "types", "imports"} <= targets


def test_continuous_integration_runs_the_gate():
    script = (REPO / ".ci" / "run").read_text()
    called = set(re.findall(r"^make (\w+)", script, flags=re.MULTILINE))
    assert {"lint", "types", "imports", "test"} <= called


def test_constraints_pin_what_is_installed():
    """Exact pins of every direct need; torch without a build tag, as each platform has its own."""
    lines = [
        line
        for line in (REPO / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    assert [
        line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line)
    ] == []
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    wanted = [*project["dependencies"], *(need for extra in extras for need in extra)]
    pinned = {_distribution(line) for line in lines}
    assert {_distribution(need) for need in wanted} - pinned == set()


def _distribution(requirement: str) -> str:
    return re.split(r"[\[<>=!~; ]", requirement)[0].lower().replace("_", "-")


def test_test_files_have_names_of_their_own():
    """pytest imports them by their bare names, so two of one name stop the whole run."""
    names = [
        path.stem for path in (REPO / "tests").rglob("*.py") if "node_modules" not in str(path)
    ]
    twice = {name for name in names if names.count(name) > 1}
    assert twice <= {"conftest", "__init__"}
