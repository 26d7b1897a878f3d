"""Chunks through pools of processes, whatever dies on the way.

One queue a step; a process takes the next chunk when it has room, so that unlike GPUs each work at
their own pace. Every chunk leaves the pipeline once, finished or with its items marked failed:

- a process dies or hangs: its chunk goes to another one (`piece.after_kill`);
- its node is gone: the same, but nothing counts against the chunk;
- a stage raises: the chunk is halved down to the item (`piece.after_error`);
- a result is lost with the node that held it: the chunk begins again.

What another try cannot mend (the outputs cannot be written, no process of a step can start, nothing
moves) ends the run with an error that says so. Knows nothing of what the stages do.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

import ray
import ray.exceptions

from hymotion_ray.engine.mishaps import Mishaps
from hymotion_ray.engine.nodes import Node, living_nodes
from hymotion_ray.engine.piece import LOSSES_OF_A_CHUNK, Piece, after_error, after_kill
from hymotion_ray.engine.pool import Pool, Step
from hymotion_ray.engine.runner import Failure, Receipt
from hymotion_ray.engine.stage import Chunk
from hymotion_ray.engine.whereabouts import never_ran, short, where
from hymotion_ray.engine.worker import Assignment, Hello, Sign, Worker
from hymotion_ray.errors import ClusterError, HyMotionError, OutputError

FAILED_SETUPS = 3
"""Set-ups of a step that fail in a row, none having worked, before the run ends."""
SETUP_S = 900.0
"""Seconds that a process may load for, however short the watchdog's time is."""
_NODES_EVERY_S = 2.0
_SIGNS_EVERY_S = 5.0
_TELL_WAITING_S, _END_S = 30.0, 5.0


@dataclass
class Dispatcher:
    """Runs chunks through the steps. Needs a connected Ray."""

    steps: Sequence[Step]
    say: Callable[[str], None]
    stall_s: float = 1800.0
    """Seconds without a sign of life after which a process, or the whole run, counts as hung."""
    on_suspect: Callable[[Piece], None] = lambda piece: None
    """Told of each piece that a process died over."""
    on_ready: Callable[[str, Hello], None] = lambda step, hello: None
    """Told of each process that has come up and of its step; may raise to end the run."""
    mishaps: Mishaps = field(default_factory=Mishaps)

    def __post_init__(self) -> None:
        self.stage_seconds: Counter[str] = Counter()
        """Seconds that processes spent in each stage."""
        self.ended: list[tuple[str, Worker]] = []
        """The processes there were at the end, with their kinds."""
        self._last = len(self.steps) - 1
        self.pools = [Pool(s, is_last=k == self._last) for k, s in enumerate(self.steps)]
        self._queues: list[deque[Piece]] = [deque() for _ in self.steps]
        self._owners: dict[ray.ObjectRef, tuple[Pool, Worker]] = {}
        self._pieces: set[Piece] = set()
        self._suspects: deque[Piece] = deque()
        self._exhausted = False
        self._nodes: list[Node] = []
        self._nodes_at = self._signs_at = 0.0
        self._began_at = self._progress_at = time.monotonic()
        self._told: set[str] = set()

    def run(self, chunks: Iterable[Chunk], suspects: Iterable[Chunk] = ()) -> Iterator[Receipt]:
        """A receipt of the last step for each chunk (or part of it), as they finish.

        `suspects` come after all others, an item each. Raises `OutputError` when outputs cannot be
        written and `ClusterError` when the cluster cannot do the work. Ends its processes in any
        case, also when the iterator is closed early.
        """
        # Suspects are asked for when all else is out: their source may be known only then.
        source = chain(
            (Piece(chunk) for chunk in chunks),
            (Piece(chunk, is_suspect=True) for chunk in suspects),
        )
        try:
            while self._feed(source):
                self._staff()
                self._assign()
                yield from self._collect()
                self._watch()
        finally:
            self._end_all()

    @property
    def workers(self) -> list[Worker]:
        """All processes there are."""
        return [worker for pool in self.pools for worker in pool.workers]

    def running(self) -> list[Chunk]:
        """The chunks that processes work on now."""
        return [w.tasks[0].piece.chunk for w in self.workers if w.tasks]

    # --- in: as many chunks as keep every process busy -------------------------------------------

    def _feed(self, source: Iterator[Piece]) -> bool:
        """Take chunks from the source while there is room; whether anything is left to do."""
        window = 2 + sum(max(1, len(p.workers)) * p.step.depth for p in self.pools)
        while len(self._pieces) < window:
            piece = None if self._exhausted else next(source, None)
            if piece is None:
                self._exhausted = True
                if not self._suspects:
                    break
                piece = self._suspects.popleft()
            self._enter(piece)
        return bool(self._pieces)

    def _enter(self, piece: Piece, *, first: bool = False) -> None:
        self._pieces.add(piece)
        if first:
            self._queues[piece.step].appendleft(piece)
        else:
            self._queues[piece.step].append(piece)

    def _assign(self) -> None:
        """Hand queued pieces to processes with room, the last step first."""
        for k in range(self._last, -1, -1):
            pool, queue = self.pools[k], self._queues[k]
            while queue and not self._is_backed_up(k):
                worker = self._choose(
                    pool, scarce=self._exhausted and len(queue) <= len(pool.ready)
                )
                if worker is None:
                    break
                self._owners[worker.give(queue.popleft())] = pool, worker

    def _is_backed_up(self, step: int) -> bool:
        """Whether the next step has more waiting for it than it will soon take."""
        if step == self._last:
            return False
        after = self.pools[step + 1]
        return len(self._queues[step + 1]) > 2 + after.step.depth * len(after.ready)

    def _choose(self, pool: Pool, scarce: bool) -> Worker | None:
        """The process that gets the next piece; None while all are busy.

        When the work runs out, a piece waits for a fast process that is soon free rather than go to
        a slow one that would end last.
        """
        now = time.monotonic()
        free = [w for w in pool.ready if len(w.tasks) < pool.step.depth]
        if scarce:
            ends = {w: w.seconds_until_free(now) + (w.pace or 0.0) for w in pool.ready}
            soonest = min(ends, key=lambda w: ends[w], default=None)
            return soonest if soonest in free else None
        return min(free, key=lambda w: (len(w.tasks), w.pace or 0.0), default=None)

    # --- out: answers of processes ----------------------------------------------------------------

    def _collect(self) -> Iterator[Receipt]:
        """Handle every answer that is there; wait a moment when there is none."""
        refs = list(self._owners)
        if not refs:
            time.sleep(0.1)
            return
        ready, _ = ray.wait(refs, num_returns=len(refs), timeout=0)
        if not ready:
            ready, _ = ray.wait(refs, num_returns=1, timeout=0.5)
        for ref in ready:
            owner = self._owners.pop(ref, None)
            if owner is None:
                continue  # its process was found dead by an earlier answer
            receipt = self._answer(ref, *owner)
            if receipt is not None:
                yield receipt

    def _answer(self, ref: ray.ObjectRef, pool: Pool, worker: Worker) -> Receipt | None:
        if worker not in pool.workers:
            return None
        try:
            answer = ray.get(ref)
        except ray.exceptions.RayActorError as error:
            self._died(pool, worker, error)
            return None
        except ray.exceptions.RayError as error:
            self._raised(ref, pool, worker, error)
            return None
        if ref == worker.sign:
            self._alive(worker, answer)
            return None
        self._progress_at = time.monotonic()
        if ref == worker.ready:
            worker.ready, worker.hello, pool.failed_setups = None, answer, 0
            worker.last_sign = worker.ready_at = self._progress_at
            self.on_ready(pool.step.name, answer)
            return None
        return self._returned(pool, worker, worker.take(ref), answer)

    def _returned(
        self, pool: Pool, worker: Worker, task: Assignment, receipt: Receipt
    ) -> Receipt | None:
        piece, failure = task.piece, receipt.failure
        self.stage_seconds.update(receipt.seconds)
        pool.use.peak_bytes = max(pool.use.peak_bytes, receipt.peak_bytes)
        if failure is not None:
            self._failed(pool, worker, piece, failure)
            return None
        if piece.step == self._last:
            self._pieces.discard(piece)
            return receipt
        piece.step, piece.payload = piece.step + 1, task.result
        self._enter(piece)
        return None

    # --- what goes wrong --------------------------------------------------------------------------

    def _failed(self, pool: Pool, worker: Worker, piece: Piece, failure: Failure) -> None:
        """A stage raised."""
        if failure.stops_job or piece.is_written_off:
            raise OutputError(failure.text)
        if failure.taints_process:
            self.mishaps.killed += 1
            self.say(f"{worker.name} cannot go on, others take over: {failure.text:.300}")
            how = "lost their GPU or a process of their group"
            self._instead(piece, after_kill(piece, failure.stage, how, self._last))
            self._end(pool, worker)
        else:
            self._instead(piece, after_error(piece, failure.stage, failure.text, self._last))

    def _raised(
        self, ref: ray.ObjectRef, pool: Pool, worker: Worker, error: ray.exceptions.RayError
    ) -> None:
        """A call ended in an error of Ray's, or of a set-up's own."""
        cause = getattr(error, "cause", None) or error
        if ref == worker.sign:
            worker.sign = None
        elif ref == worker.ready:
            self._setup_failed(pool, worker, cause)
        else:  # what the process should have worked on could not be fetched
            piece = worker.take(ref).piece
            self._lose(piece, short(cause))
            self._enter(piece.begin_again(), first=True)

    def _setup_failed(self, pool: Pool, worker: Worker, cause: BaseException) -> None:
        self._forget(worker)
        if never_ran(cause):  # its node went away first: nobody's fault, and a new one may come
            pool.start_again(worker)
            return
        pool.setup_failed(worker)
        own = isinstance(cause, HyMotionError)
        if pool.ready or (pool.failed_setups < FAILED_SETUPS and not own):
            self.say(f"{worker.name} could not start, another try follows: {short(cause)}")
            return
        if own:
            raise cause
        raise ClusterError(
            f"no {pool.step.name} process could start, {pool.failed_setups} tried: {short(cause)}"
        ) from cause

    def _died(self, pool: Pool, worker: Worker, error: BaseException) -> None:
        """A process is gone, or cannot be reached, which is taken for the same."""
        if worker.hello is None:
            self._setup_failed(pool, worker, error)
            return
        node_id = worker.hello.node_id
        self._nodes_at = 0.0
        gone = node_id not in {n.node_id for n in living_nodes()}
        self.mishaps.died(with_node=gone)
        self.say(f"{worker.name} {'went away with its node' if gone else 'died'}; others take over")
        self._orphan(pool, worker, None if gone else "died")

    def _orphan(self, pool: Pool, worker: Worker, how: str | None) -> None:
        """Put what a lost process held back; `how` counts against the piece that was running."""
        tasks = list(worker.tasks)
        worker.tasks.clear()
        self._end(pool, worker)
        for task in reversed(tasks[1:]):
            self._enter(task.piece, first=True)
        if not tasks:
            return
        piece = tasks[0].piece
        if how is None or piece.is_written_off:
            self._lose(piece, f"{pool.step.name} processes went away over them")
            self._enter(piece, first=True)
            return
        assert worker.hello is not None, "only a process that said hello holds tasks"
        self.mishaps.blame(time.monotonic(), worker.hello.node_id, piece)
        self._instead(piece, after_kill(piece, pool.step.name, how, self._last))
        self.on_suspect(piece)

    def _lose(self, piece: Piece, why: str) -> None:
        piece.num_losses += 1
        if piece.num_losses > LOSSES_OF_A_CHUNK:
            raise ClusterError(
                f"the same clips were lost {piece.num_losses} times ({why}); see the cluster's"
                " health, and run the same command again to go on"
            )

    def _instead(self, piece: Piece, pieces: Sequence[Piece]) -> None:
        self._pieces.discard(piece)
        for one in pieces:
            if one.is_suspect and not one.is_written_off and one.step == 0:
                self._suspects.append(one)
            else:
                self._enter(one)

    def _end(self, pool: Pool, worker: Worker) -> None:
        """End a process; what it still holds goes back into the queues."""
        for task in reversed(worker.tasks):
            self._enter(task.piece, first=True)
        worker.tasks.clear()
        pool.end(worker)
        self._forget(worker)

    def _forget(self, worker: Worker) -> None:
        self._owners = {ref: own for ref, own in self._owners.items() if own[1] is not worker}

    def _end_all(self) -> None:
        """End every process and wait until they are gone, so that none writes after this."""
        ended = self.workers
        self.ended = [
            (f"{pool.step.name} on {worker.hello.kind}", worker)
            for pool in self.pools
            for worker in pool.workers
            if worker.hello is not None
        ]
        for pool in self.pools:
            for worker in list(pool.workers):
                pool.end(worker)
        self._owners.clear()
        if ended and ray.is_initialized():
            ray.wait([w.actor.sign.remote() for w in ended], num_returns=len(ended), timeout=_END_S)

    # --- looking after the processes --------------------------------------------------------------

    def _staff(self) -> None:
        """Take in which nodes there are, and keep each pool at its size."""
        now = time.monotonic()
        if now - self._nodes_at < _NODES_EVERY_S:
            return
        self._nodes_at = now
        self._nodes = living_nodes()
        self.mishaps.forgive(now, {node.node_id for node in self._nodes})
        for pool, queue in zip(self.pools, self._queues, strict=True):
            for worker in pool.staff(self._nodes, len(queue)):
                assert worker.ready is not None
                self._owners[worker.ready] = pool, worker

    def _watch(self) -> None:
        """Ask processes for signs of life; end those that show none for long."""
        now = time.monotonic()
        if now - self._signs_at < min(_SIGNS_EVERY_S, self.stall_s / 4):
            return
        self._signs_at = now
        for pool in self.pools:
            for worker in list(pool.workers):
                self._watch_worker(pool, worker, now)
        if now - self._progress_at > self.stall_s:
            stand = where(self.pools, self._queues, self._nodes)
            raise ClusterError(f"nothing moved for {self.stall_s:g} s: {stand}")
        if now - self._began_at > _TELL_WAITING_S:
            self._tell_waiting()

    def _watch_worker(self, pool: Pool, worker: Worker, now: float) -> None:
        is_silent = now - worker.last_sign > self.stall_s
        if worker.sign is None:  # one that has no place yet answers when it has
            worker.sign = worker.actor.sign.remote()
            self._owners[worker.sign] = pool, worker
        if worker.hello is None:
            if is_silent and not worker.is_loading(now, max(self.stall_s, SETUP_S)):
                self._forget(worker)
                pool.setup_failed(worker)
            return
        if worker.tasks and is_silent:
            self.say(f"{worker.name} showed no life for {self.stall_s:g} s and was ended")
            self.mishaps.hung += 1
            self._progress_at = now
            self._orphan(pool, worker, "hung")

    def _alive(self, worker: Worker, sign: Sign) -> None:
        worker.sign = None
        worker.memory = sign.torch_allocated, sign.torch_reserved
        now = time.monotonic()
        if worker.hello is None:
            worker.placed_at = worker.placed_at or now
        if sign.beats != worker.beats:
            worker.beats, worker.last_sign = sign.beats, now
            if worker.tasks:
                self._progress_at = now
        if worker.is_loading(now, SETUP_S):
            self._progress_at = now

    def _tell_waiting(self) -> None:
        for pool, queue in zip(self.pools, self._queues, strict=True):
            if queue and not pool.ready and pool.step.name not in self._told:
                self._told.add(pool.step.name)
                self.say(f"still waiting: {where(self.pools, self._queues, self._nodes)}")
