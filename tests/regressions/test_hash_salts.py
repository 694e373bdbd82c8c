"""Tables place keys by a hash with a random salt, on which nothing that users see may depend.

Every table, and therefore every training below, has its own salt.
"""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from tests.support.servers import NativeServers
from torch import Tensor, nn

from sparsefleet import _core, optim
from sparsefleet.checkpoint import Checkpoint, diff
from sparsefleet.nn import SparseEmbedding, apply_gradients, bind
from sparsefleet.serving.export.export_directory import PendingExport
from sparsefleet.serving.export.quantization import RowFormat
from sparsefleet.serving.export.row_file import write_rows
from sparsefleet.store import LocalStore, Normal, RoundMember, Store, TableSpec

KEYS = 700
ADS = TableSpec(name="ads", dim=4, optimizer=optim.Adam(lr=0.1), initializer=Normal(0.0, 0.5))


class _Scored(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.items = SparseEmbedding("items", 4, initializer=Normal(0.0, 0.5), seed=1)
        self.score = nn.Linear(4, 1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.score(self.items(ids)).squeeze(-1)


def _trained() -> tuple[_Scored, LocalStore]:
    torch.manual_seed(0)
    model, store = _Scored(), LocalStore()
    bind(model, store, optim.Adagrad(lr=0.1))
    rng = np.random.default_rng(0)
    for _ in range(5):
        model(torch.from_numpy(rng.integers(0, KEYS, 200))).square().sum().backward()
        apply_gradients(model)
    return model, store


def _state_bytes(model: nn.Module) -> bytes:
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    return file.getvalue()


def _take_rounds(store: Store, rank: int, rounds: int) -> None:
    """Gradients of one of two workers, with keys that repeat in it and in the other's."""
    rng = np.random.default_rng(rank)
    member = RoundMember(rank=rank, size=2)
    for number in range(rounds):
        keys = rng.integers(0, KEYS, 300)
        gradients = rng.normal(size=(300, ADS.dim)).astype(np.float32)
        store.push_round(member, number, {ADS.name: (keys, gradients)})
    store.leave_group(member)


def _save_sync_training(directory: Path) -> None:
    with (
        NativeServers(2) as servers,
        servers.connect(name="worker-0") as first,
        servers.connect(name="worker-1") as second,
    ):
        first.define(ADS)
        with ThreadPoolExecutor(2) as pool:
            for done in [
                pool.submit(_take_rounds, store, rank, 10)
                for rank, store in enumerate((first, second))
            ]:
                done.result()
        first.save(directory)


def test_tables_hand_out_rows_in_an_order_of_their_own() -> None:
    """Salts differ; otherwise the tests below would compare nothing."""
    orders = []
    for _ in range(2):
        with LocalStore() as store:
            store.define(ADS)
            store.pull("ads", np.arange(KEYS))
            orders.append(np.concatenate([rows.keys for rows in store.rows("ads")]))
    assert orders[0].tolist() != orders[1].tolist()
    assert sorted(orders[0].tolist()) == sorted(orders[1].tolist())


def test_sync_training_saves_equal_checkpoints(tmp_path: Path) -> None:
    for name in "ab":
        _save_sync_training(tmp_path / name)
    found = diff(*(Checkpoint.open(str(tmp_path / name)) for name in "ab"))
    assert [table.is_same and table.same for table in found.tables] == [KEYS]


def test_state_dicts_and_exported_rows_are_equal_to_the_byte(tmp_path: Path) -> None:
    trainings = [_trained() for _ in range(2)]
    assert len({_state_bytes(model) for model, _ in trainings}) == 1
    formats: tuple[RowFormat, ...] = ("float32", "int8")
    for row_format in formats:
        found = set()
        for index, (_, store) in enumerate(trainings):
            with PendingExport(tmp_path / f"{index}-{row_format}") as pending:
                path, num_rows, error = write_rows(
                    pending,
                    "rows-0",
                    store.rows("items"),
                    table="items",
                    dim=4,
                    row_format=row_format,
                )
                found.add((path.read_bytes(), num_rows, error.largest, error.mean))
        assert len(found) == 1


def test_ids_chosen_to_collide_are_unique_keys_like_others() -> None:
    """`core/table/hash_flooding_test.cc` counts the probes; here they pass through the binding."""
    keys = np.array([_unmix64(5 << 58 | index << 32 | 0x1234ABCD) for index in range(2000)], "u8")
    assert {_core.mix64(int(key)) & 0xFC000000FFFFFFFF for key in keys} == {5 << 58 | 0x1234ABCD}
    distinct, inverse = _core.unique(np.concatenate([keys, keys[::-1]]))
    np.testing.assert_array_equal(distinct, keys)
    np.testing.assert_array_equal(distinct[inverse[2000:]], keys[::-1])


def _unmix64(value: int) -> int:
    """The inverse of `_core.mix64`."""
    for shift, factor in ((31, 0x94D049BB133111EB), (27, 0xBF58476D1CE4E5B9), (30, 1)):
        value ^= value >> shift ^ value >> 2 * shift
        value = value * pow(factor, -1, 1 << 64) % (1 << 64)
    return (value - 0x9E3779B97F4A7C15) % (1 << 64)
