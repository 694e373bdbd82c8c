"""A discrete-event model of a training job that predicts a fleet's examples per second.

Keys are spread over servers by a hash, so all servers get the same load. Only a few servers are
simulated, and each represents an equal share of all servers: it handles the requests to one server,
but they load the worker's network card with the bytes for its whole share. Similarly, at most 128
workers are simulated. A server is then busy, and its card loaded, as if all workers had sent
requests; and where workers step together, each simulated worker takes as long as the slowest worker
that it represents.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sparsefleet.errors import ConfigError
from sparsefleet.modes.geo import settled_interval
from sparsefleet.planning.costs import KEY_BYTES, MachineCosts
from sparsefleet.planning.simulation import (
    Card,
    Gate,
    Host,
    Pool,
    Process,
    Simulation,
    Thread,
    Wait,
    send,
)
from sparsefleet.planning.workload import MODES, FleetShape, JobShape

__all__ = ["Prediction", "predict"]

_SIMULATED_SERVERS = 4
_FEWER = 2  # fewer with many workers, to save time
_MANY_WORKERS = 64
_SIMULATED_WORKERS = 128
_SERVER_THREADS = 8  # the maximum that `sparsefleet server` uses by default
_FLOAT_BYTES = 4
_FRAME_BYTES = 120  # header, section heads and TLS records of a request or reply
_MERGED = 4  # AsyncConfig.max_merge for one thread, if merging does not change results
_LINGER_S = 0.05
_WARM_STEPS = 4
_FLOATS_PER_PIECE = 32  # floats of a row per thread that sums the rows of a round
_GEO_PARTS = 5  # a geo interval is simulated as this many pieces of computing


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """The performance of a fleet as predicted by the model."""

    examples_per_s: float
    bytes_per_example: float
    """Traffic of all servers, in both directions."""
    server_busy: float
    """The busy share of a server's cores; on one shared machine, of all its cores."""
    worker_busy: float
    """The share of time that a worker's core computes or packs requests."""
    network_busy: float
    """The share of bandwidth in use on the busiest card, in its busier direction."""
    server_share: float
    """The servers' share of the CPU time of all processes, if nothing else slows them down."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Call:
    """The cost of one request to all servers."""

    pack_s: float = 0.0
    """Time that the worker spends before it sends anything: it sorts keys and copies rows."""
    send_s: float = 0.0
    """Time that the worker spends on sending to all servers, one after another."""
    receive_s: float = 0.0
    """Time that the worker spends on receiving all replies, one after another."""
    unpack_s: float = 0.0
    """Time that the worker spends after the last reply has arrived."""
    sent: float = 0.0
    """Bytes sent to all servers, excluding the dense part."""
    received: float = 0.0
    sent_dense: float = 0.0
    received_dense: float = 0.0
    key_s: float = 0.0
    """Total time in all servers, excluding the fixed cost of requests and the dense part."""
    dense_s: float = 0.0
    """Total time in the servers that hold dense parameters."""
    reply_s: float = 0.0
    """Total time in all servers after a round is complete."""
    merge_s: float = 0.0
    """Total time in all servers for the part of `key_s` that only the thread that completes a round
    can do: it finds duplicate keys and applies the sums to the rows.
    """
    add_s: float = 0.0
    """The part of `key_s` in which several threads sum rows. The rest is unpacking and decryption,
    done by each request's own thread.
    """
    add_dense_s: float = 0.0
    """The part of `dense_s` in which several threads sum values."""


class _Server:
    """One simulated server, and the round of gradients that it is collecting."""

    def __init__(self, host: Host, card: Card | None, threads: int, dense_share: float) -> None:
        self.host = host
        self.card = card
        self.pool = Pool(host, threads)
        self.dense_share = dense_share
        """The share of the dense parameters that it holds."""
        self.arrived = 0
        self.round = Gate()


class _Worker:
    """One worker process, and the gates that its threads wait at."""

    def __init__(self, host: Host, card: Card | None) -> None:
        self.host = host
        self.card = card
        self.rows = Gate()  # the next batch's rows have arrived
        self.wanted = Gate()  # rows may be pulled
        self.queued = 0
        self.filled = Gate()  # something is queued
        self.drained = Gate()  # there is room in the queue
        self.exchanged = Gate()  # no exchange is in progress
        self.exchanged.open()
        self.due = Gate()


class _Replies:
    """Counts the replies that have arrived and have not been read."""

    def __init__(self) -> None:
        self._arrived = 0
        self._gate = Gate()

    def arrive(self) -> None:
        self._arrived += 1
        self._gate.open()

    def next(self) -> Wait:
        """Return a wait until there is a reply to read."""

        def begin(resume: Callable[[], None]) -> None:
            def read() -> None:
                self._arrived -= 1
                if not self._arrived:
                    self._gate.close()
                resume()

            self._gate.wait()(read)

        return begin


class _Countdown:
    """A gate that opens after a given number of calls."""

    def __init__(self, number: int) -> None:
        self._left = number
        self.gate = Gate()

    def count(self) -> None:
        self._left -= 1
        if not self._left:
            self.gate.open()


class _FleetModel:
    """The simulation of one job. Use it only once."""

    def __init__(self, mode: str, job: JobShape, fleet: FleetShape, costs: MachineCosts) -> None:
        self.mode = mode
        self.job = job
        self.fleet = fleet
        self.exchange_steps = job.exchange_steps or settled_interval(fleet.workers)
        self.simulation = Simulation()
        self.num_workers = min(fleet.workers, _SIMULATED_WORKERS)
        self._each = fleet.workers / self.num_workers  # workers represented by each simulated one
        self._operations = costs.of(fleet.transport, fleet.servers)
        self._one_server = costs.of(fleet.transport, 1)
        self._unencrypted = costs.of("host", fleet.servers)
        self._served = costs.mode_server.get(mode, 1.0)
        self._latency_s = costs.latency_s[fleet.transport]
        self._wake_s = self._latency_s  # on one machine, a core is busy while a thread wakes up
        if fleet.network_bytes_per_s is not None:
            self._latency_s, self._wake_s = self._latency_s + fleet.latency_s, 0.0
        self._random = random.Random(0)
        self._overhead_s = costs.mode_step_s.get(mode, 0.0)
        self._server_request_s = self._operations["push"].server.request_s + self._wake_s
        self.steps = 0
        self.bytes = 0.0
        self._make_machines()

    def _make_machines(self) -> None:
        fleet, simulation, crowding = self.fleet, self.simulation, self.job.crowding
        most = _FEWER if fleet.workers > _MANY_WORKERS else _SIMULATED_SERVERS
        simulated = min(fleet.servers, most)
        parts = self.job.dense_parts(fleet.servers)
        with_dense = max(1, round(simulated * parts / fleet.servers)) if parts else 0
        threads = min(fleet.server_cores, _SERVER_THREADS)
        shared = None
        if fleet.network_bytes_per_s is None:
            shared = Host(simulation, fleet.worker_cores - fleet.busy_cores, crowding)
        self.hosts: list[Host] = [] if shared is None else [shared]
        self.servers = []
        for index in range(simulated):
            host, card = shared, None
            if host is None:
                host = Host(simulation, fleet.server_cores, crowding)
                card = Card(fleet.network_bytes_per_s or 0.0)
            share = 1.0 / parts if index < with_dense else 0.0
            self.servers.append(_Server(host, card, threads, share))
        self.workers: list[_Worker] = []
        host, card = shared, None
        for index in range(self.num_workers):
            if shared is None and index % fleet.worker_cores == 0:
                host = Host(simulation, fleet.worker_cores, crowding)
                card = Card(fleet.network_bytes_per_s or 0.0)
            assert host is not None
            self.workers.append(_Worker(host, card))

    # -- requests -----------------------------------------------------------------------------

    def _request(
        self,
        *,
        pulled: float = 0.0,
        pushed: float = 0.0,
        rows: str = "pull",
        gradients: str = "push",
        dense: str = "",
    ) -> _Call:
        """Return the cost of a request that pulls and pushes these numbers of keys.

        rows, gradients: names of the operations that pull rows and push gradients. dense: "both"
        sends dense gradients and fetches dense values, "gradients" only sends them.
        """
        row = self.job.row_floats * _FLOAT_BYTES
        pull, push = self._operations[rows], self._operations[gradients]
        values = self._operations["dense"]
        out, back = pushed * (KEY_BYTES + row) + pulled * KEY_BYTES, pulled * row
        if rows == "changes":  # the reply contains the keys
            out, back = out - pulled * KEY_BYTES, back + pulled * KEY_BYTES
        frames = _FRAME_BYTES * self.fleet.servers
        out, back = out + frames, back + frames
        flat = self.job.dense * _FLOAT_BYTES
        dense_out = flat if dense else 0.0
        dense_back = flat if dense == "both" else 0.0
        packs = push if pushed or not pulled else pull
        asked = packs.client.request_s * self.fleet.servers
        pulled_bytes, pushed_bytes = (count * (KEY_BYTES + row) for count in (pulled, pushed))
        dense_bytes = dense_out + dense_back
        one_push, one_pull = self._one_server[gradients], self._one_server[rows]
        sent_s = min(one_push.client.size_s(pushed_bytes), push.client.size_s(pushed_bytes))
        read_s = min(one_pull.client.size_s(pulled_bytes), pull.client.size_s(pulled_bytes))
        served_s = self._served * pull.server.of(requests=0, keys=pulled, size=pulled_bytes)
        pushed_s = self._served * push.server.of(requests=0, keys=pushed, size=pushed_bytes)
        dense_client_s = values.client.size_s(dense_bytes) / max(dense_bytes, 1.0)
        dense_s = values.server.size_s(dense_bytes)
        merge_s = add_s = 0.0
        if gradients == "round" and pushed:
            merge_s, add_s, saved_s = self._round_parts(pushed, pushed_bytes, pushed_s)
            pushed_s -= saved_s
        return _Call(
            pack_s=push.client.of(requests=0, keys=pushed, size=pushed_bytes)
            - sent_s
            + pull.client.key_s * pulled,
            send_s=asked / 2 + sent_s + dense_client_s * dense_out,
            receive_s=asked / 2 + read_s + dense_client_s * dense_back,
            unpack_s=pull.client.size_s(pulled_bytes) - read_s,
            sent=out,
            received=back,
            sent_dense=dense_out,
            received_dense=dense_back,
            key_s=pushed_s + (0.0 if gradients == "round" else served_s),
            dense_s=dense_s,
            reply_s=served_s if gradients == "round" else 0.0,
            merge_s=merge_s,
            add_s=add_s,
            add_dense_s=min(dense_s / 2, self._unencrypted["dense"].server.size_s(dense_out)),
        )

    def _round_parts(self, keys: float, size: float, all_s: float) -> tuple[float, float, float]:
        """Return the parts of `all_s`, the CPU time for the rows of a worker in a round: what the
        thread that completes the round does, what several threads share, and what is saved because
        workers have keys in common.

        A server copies the rows of a pull, copies and applies those of a push, and copies, sums and
        applies those of a round, so the costs of applying and summing are differences.
        """
        found, push, pull = (self._unencrypted[name].server for name in ("round", "push", "pull"))
        summed_s = max(0.0, found.size_s(size) - push.size_s(size))
        applied_s = max(0.0, found.size_s(size) - summed_s - pull.size_s(size))
        workers = self.fleet.workers
        saved_s = applied_s * (1.0 - self.job.keys_of(workers) / (self.job.keys * workers))
        once_s = found.key_s * keys + applied_s - saved_s
        scale = min(self._served, all_s / found.of(requests=0, keys=keys, size=size))
        return scale * once_s, scale * summed_s, scale * saved_s

    def _ask(
        self, worker: _Worker, thread: Thread, call: _Call, *, in_round: bool = False
    ) -> Process:
        """Send a request to all servers, one after another, and return when the last reply is
        unpacked.
        """
        self.bytes += call.sent + call.received + call.sent_dense + call.received_dense
        yield thread.work(call.pack_s)
        replies = _Replies()
        serve = self._serve_round if in_round else self._serve
        each = 1.0 / len(self.servers)
        for server in self.servers:
            yield thread.work(call.send_s * each)
            self.simulation.start(serve(worker, server, call, replies))
        for _ in self.servers:
            yield replies.next()
            yield thread.work(call.receive_s * each + self._wake_s)
        yield thread.work(call.unpack_s)

    def _serve(self, worker: _Worker, server: _Server, call: _Call, replies: _Replies) -> Process:
        yield self._arrive(worker, server, call)
        seconds = self._server_request_s + (call.key_s + call.reply_s) / self.fleet.servers
        seconds += call.dense_s * server.dense_share
        yield server.pool.work(seconds * self._each)
        yield self._return(worker, server, call)
        replies.arrive()

    def _serve_round(
        self, worker: _Worker, server: _Server, call: _Call, replies: _Replies
    ) -> Process:
        """Serve a worker's gradients in a round. They are kept until all workers have sent theirs;
        then the thread that serves the last worker merges and applies them, and other threads help
        with the sums.
        """
        yield self._arrive(worker, server, call)
        servers, share, each = self.fleet.servers, server.dense_share, self._each
        merge_s = call.merge_s / servers
        add_s, add_dense_s = call.add_s / servers, call.add_dense_s * share
        all_s = call.key_s / servers + call.dense_s / 2 * share
        yield server.pool.work(
            (self._server_request_s + all_s - merge_s - add_s - add_dense_s) * each
        )
        server.arrived += 1
        this_round = server.round
        if server.arrived == self.num_workers:
            server.arrived, server.round = 0, Gate()
            yield server.pool.work(merge_s * self.fleet.workers)
            most = int(1 + self.job.row_floats / _FLOATS_PER_PIECE)
            yield from self._share(server, add_s * self.fleet.workers, most)
            yield from self._share(server, add_dense_s * self.fleet.workers, _SERVER_THREADS)
            this_round.open()
        else:
            yield this_round.wait()
        yield server.pool.work((call.reply_s / servers + call.dense_s / 2 * share) * each)
        yield self._return(worker, server, call)
        replies.arrive()

    def _share(self, server: _Server, seconds: float, most: int) -> Process:
        """Run `seconds` of work on a server, split among up to `most` threads."""
        pieces = min(most, _SERVER_THREADS, self.fleet.server_cores)
        done = _Countdown(pieces)

        def piece() -> Process:
            yield server.pool.work(seconds / pieces)
            done.count()

        for _ in range(pieces):
            self.simulation.start(piece())
        yield done.gate.wait()

    def _arrive(self, worker: _Worker, server: _Server, call: _Call) -> Callable[..., None]:
        sizes = self._sizes(server, call.sent, call.sent_dense)
        return send(self.simulation, worker.card, server.card, sizes, self._latency_s)

    def _return(self, worker: _Worker, server: _Server, call: _Call) -> Callable[..., None]:
        at_worker, at_server = self._sizes(server, call.received, call.received_dense)
        sizes = (at_server, at_worker)
        return send(self.simulation, server.card, worker.card, sizes, self._latency_s)

    def _sizes(self, server: _Server, size: float, dense: float) -> tuple[float, float]:
        """Return a message's bytes on the worker's network card and on the server's."""
        at_server = size / self.fleet.servers + dense * server.dense_share
        at_worker = at_server * self.fleet.servers / len(self.servers)
        return at_worker, at_server * self._each

    # -- modes --------------------------------------------------------------------------------

    def processes(self, worker: _Worker) -> Sequence[Process]:
        """Return the processes that simulate a worker's threads in this mode."""
        if self.mode in ("sync", "half_async"):
            return (self._step_with_servers(worker),)
        if self.mode == "geo":
            return (self._train_copies(worker), self._exchange(worker))
        rounds = self.mode == "hybrid"
        return (
            self._train_ahead(worker, rounds=rounds),
            self._pull_ahead(worker),
            self._send_queued(worker, with_dense=not rounds),
        )

    def _compute(self, steps: int = 1) -> float:
        mean_s = (self.job.compute_s + self._overhead_s) * steps
        if not self.job.variation:
            return mean_s
        shape = steps / self.job.variation**2
        draws = round(self._each) if self.mode in ("sync", "hybrid") else 1
        return max(self._random.gammavariate(shape, mean_s / shape) for _ in range(draws))

    def _step_with_servers(self, worker: _Worker) -> Process:
        """Simulate a worker in sync or half_async mode.

        In these modes, the reply to a push contains the next batch's rows.
        """
        keys, dense = self.job.keys, "both" if self.job.dense else ""
        in_round = self.mode == "sync"
        gradients = "round" if in_round and self.fleet.workers > 1 else "push"
        call = self._request(pulled=keys, pushed=keys, gradients=gradients, dense=dense)
        thread = worker.host.thread()
        while True:
            yield thread.work(self._compute())
            yield from self._ask(worker, thread, call, in_round=in_round)
            self.steps += 1

    def _train_ahead(self, worker: _Worker, *, rounds: bool) -> Process:
        """Simulate the training thread of async and hybrid modes."""
        in_round = self._request(gradients="round", dense="both")
        worker.wanted.open()
        thread = worker.host.thread()
        while True:
            yield worker.rows.wait()
            worker.rows.close()
            worker.wanted.open()
            yield thread.work(self._compute())
            while worker.queued >= self._most_merged:
                worker.drained.close()
                yield worker.drained.wait()
            worker.queued += 1
            worker.filled.open()
            if rounds and self.job.dense:
                yield from self._ask(worker, thread, in_round, in_round=True)
            self.steps += 1

    @property
    def _most_merged(self) -> int:
        return _MERGED if self.job.merges_freely else 1

    def _pull_ahead(self, worker: _Worker) -> Process:
        call = self._request(pulled=self.job.keys)
        thread = worker.host.thread()
        while True:
            yield worker.wanted.wait()
            worker.wanted.close()
            yield from self._ask(worker, thread, call)
            worker.rows.open()

    def _send_queued(self, worker: _Worker, *, with_dense: bool) -> Process:
        """Simulate the sender thread, which merges queued gradients and pushes them. The reply
        includes the dense values if more than one mini-batch has been sent since the last reply
        that did.
        """
        parts = ("gradients", "both") if with_dense and self.job.dense else ("", "")
        calls = [
            [self._request(pushed=self.job.keys_of(count), dense=dense) for dense in parts]
            for count in range(self._most_merged + 1)
        ]
        unseen = 0
        thread = worker.host.thread()
        while True:
            yield worker.filled.wait()
            count = 0
            while count < self._most_merged:
                if not worker.queued and with_dense:
                    yield worker.filled.wait_within(self.simulation, _LINGER_S)
                if not worker.queued:
                    break
                count, worker.queued = count + 1, worker.queued - 1
                if not worker.queued:
                    worker.filled.close()
                worker.drained.open()
            is_due = unseen + count > 1
            yield from self._ask(worker, thread, calls[count][is_due])
            unseen = 0 if is_due else unseen + count

    def _train_copies(self, worker: _Worker) -> Process:
        """Simulate geo's training thread, which sends no requests itself.

        It waits if the previous exchange is still in progress when the next one is due.
        """
        steps = max(1, self.exchange_steps // _GEO_PARTS)
        done = 0
        thread = worker.host.thread()
        while True:
            yield thread.work(self._compute(steps))
            done += steps
            self.steps += steps
            if done >= self.exchange_steps:
                done = 0
                yield worker.exchanged.wait()
                worker.exchanged.close()
                worker.due.open()

    def _exchange(self, worker: _Worker) -> Process:
        """Simulate geo's exchanges with the servers.

        An exchange sends this worker's deltas and fetches the rows that any worker has changed
        since the last exchange.
        """
        own = self.job.keys_of(self.exchange_steps)
        everyone = self.job.keys_of(self.exchange_steps * self.fleet.workers)
        dense = "both" if self.job.dense else ""
        give = self._request(pushed=own, dense=dense)
        take = self._request(pulled=everyone, rows="changes")
        thread = worker.host.thread()
        while True:
            yield worker.due.wait()
            worker.due.close()
            yield from self._ask(worker, thread, give)
            yield from self._ask(worker, thread, take)
            worker.exchanged.open()


def predict(
    mode: str, job: JobShape, fleet: FleetShape, costs: MachineCosts, *, steps: int | None = None
) -> Prediction:
    """Simulate a job and return its rate and how busy its parts are.

    steps: mini-batches counted per worker; None uses enough for a stable mean.
    """
    if mode not in MODES:
        raise ConfigError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
    model = _FleetModel(mode, job, fleet, costs)
    if steps is None:
        steps = max(8, min(60, 3000 // fleet.workers))
    warm = _WARM_STEPS
    if mode == "geo":
        warm, steps = model.exchange_steps, 3 * model.exchange_steps
    for worker in model.workers:
        for process in model.processes(worker):
            model.simulation.start(process)
    simulation, num_workers = model.simulation, model.num_workers
    simulation.run(lambda: model.steps >= warm * num_workers)
    first, begun_s, before = model.steps, simulation.now_s, model.bytes
    busy = [sum(each.host.busy_s for each in side) for side in (model.servers, model.workers)]
    carried = _cards(model)
    end = first + steps * num_workers
    simulation.run(lambda: model.steps >= end)
    seconds = simulation.now_s - begun_s
    examples = (model.steps - first) * job.batch
    rate = examples / seconds * fleet.workers / num_workers
    moved = (model.bytes - before) / examples
    return Prediction(
        examples_per_s=rate,
        bytes_per_example=moved,
        server_busy=_busy(model.servers, busy[0], seconds, fleet.server_cores, fleet),
        worker_busy=_busy(
            model.workers, busy[1], seconds, min(fleet.worker_cores, fleet.workers), fleet
        ),
        network_busy=_network_busy(fleet, carried, _cards(model), seconds),
        server_share=_server_share(model),
    )


def _server_share(model: _FleetModel) -> float:
    served_s = sum(server.pool.asked_s for server in model.servers)
    owners: list[_Server | _Worker] = [*model.servers, *model.workers]
    hosts = {id(each.host): each.host for each in owners}
    return served_s / sum(host.asked_s for host in hosts.values())


def _busy(
    side: Sequence[_Server] | Sequence[_Worker],
    before_s: float,
    seconds: float,
    cores: int,
    fleet: FleetShape,
) -> float:
    """Return the fraction of the cores of servers or workers that tasks kept busy."""
    if fleet.network_bytes_per_s is None:
        cores = fleet.worker_cores
    used_s = sum(each.host.busy_s for each in side) - before_s
    return min(1.0, used_s / len(side) / seconds / cores)


def _network_busy(
    fleet: FleetShape, before: Sequence[float], after: Sequence[float], seconds: float
) -> float:
    """Return the fraction of bandwidth in use on the busiest network card and direction."""
    if fleet.network_bytes_per_s is None:
        return 0.0
    most = max(late - early for early, late in zip(before, after, strict=True))
    return min(1.0, most / seconds / fleet.network_bytes_per_s)


def _cards(model: _FleetModel) -> list[float]:
    """Return the bytes that every network card has carried so far, in each direction."""
    owners: list[_Server | _Worker] = [*model.servers, *model.workers]
    cards = {id(each.card): each.card for each in owners if each.card is not None}
    return [size for card in cards.values() for size in (card.sent, card.received)]
