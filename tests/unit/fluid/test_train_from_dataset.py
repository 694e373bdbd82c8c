"""The click-rate network of the quick start, and similar ones, over Datasets and feeds."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparsefleet import fluid
from sparsefleet.errors import ConfigError

L = fluid.layers
SLOTS = 4  # lines of synthetic clicks, decided by a sum of odd ids


def synthetic_clicks(folder: Path, files: int = 2, lines: int = 600) -> list[str]:
    generator = np.random.default_rng(5)
    paths = []
    for number in range(files):
        rows = []
        for _ in range(lines):
            ids = generator.integers(0, 30, SLOTS)
            dense = " ".join(f"{value:.3f}" for value in generator.uniform(size=13))
            sparse = " ".join(f"1 {slot * 100 + key + 1}" for slot, key in enumerate(ids))
            rows.append(f"13 {dense} {sparse} 1 {int((ids % 2).sum() > SLOTS / 2)}\n")
        paths.append(folder / f"part-{number}")
        paths[-1].write_text("".join(rows))
    return [str(path) for path in paths]


class ClickNetwork:
    """Section 10 of the quick start: one table for all slots, three layers of relu, softmax."""

    def __init__(self, width: int = 32) -> None:
        self.dense = L.data("dense_input", [13])
        self.slots = [L.data(f"C{slot}", [1], lod_level=1, dtype="int64") for slot in range(SLOTS)]
        self.label = L.data("label", [1], dtype="int64")
        table = fluid.ParamAttr(name="SparseFeatFactors", initializer=fluid.initializer.Uniform())
        rows = [
            L.embedding(slot, [10000001, 10], is_sparse=True, param_attr=table)
            for slot in self.slots
        ]
        hidden = L.concat([*rows, self.dense], axis=1)
        for _ in range(3):
            scale = 1 / math.sqrt(hidden.shape[1])
            attr = fluid.ParamAttr(initializer=fluid.initializer.Normal(scale=scale))
            hidden = L.fc(hidden, width, act="relu", param_attr=attr)
        self.predict = L.fc(hidden, 2, act="softmax")
        self.loss = L.reduce_sum(L.cross_entropy(self.predict, self.label))
        self.auc, self.batch_auc, self.states = L.auc(
            self.predict, self.label, num_thresholds=2**12, slide_steps=20
        )

    def dataset(self, files: list[str], threads: int = 1) -> Any:
        made = fluid.DatasetFactory().create_dataset()
        made.set_use_var([self.dense, *self.slots, self.label])
        made.set_batch_size(50)
        made.set_thread(threads)
        made.set_filelist(files)
        return made


@pytest.mark.parametrize("threads", [1, 2])
def test_clicks_are_learned_and_the_auc_is_printed(
    threads: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network = ClickNetwork()
    test = fluid.default_main_program().clone(for_test=True)
    fluid.optimizer.Adagrad(0.05).minimize(network.loss)
    dataset = network.dataset(synthetic_clicks(tmp_path), threads)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    for _ in range(3):
        exe.train_from_dataset(
            fluid.default_main_program(),
            dataset,
            fetch_list=[network.auc],
            fetch_info=["auc"],
            print_period=3,
            debug=True,
        )
    printed = capsys.readouterr()
    lines = re.findall(r"^auc\tauc_0\.tmp_0\t(\S+)$", printed.out, re.MULTILINE)
    assert len(lines) >= 3
    assert "examples/s" in printed.err
    assert re.search(r"^mean time of .*mul_add [\d.]+ ms", printed.err, re.MULTILINE)
    for state in network.states:
        tensor = fluid.global_scope().find_var(state.name).get_tensor()
        tensor.set(np.zeros(tensor.shape(), "int64"))
    exe.infer_from_dataset(test, network.dataset(dataset.filelist))
    kept = np.array(fluid.global_scope().find_var(network.states[2].name).get_tensor())
    negatives = np.array(fluid.global_scope().find_var(network.states[3].name).get_tensor())
    assert kept.sum() + negatives.sum() == 1200
    (auc,) = exe.run(test, feed=next(iter(dataset)), fetch_list=[network.auc])
    assert auc.item() > 0.9


def test_feeds_train_as_a_dataset_of_one_thread_does(tmp_path: Path) -> None:
    network = ClickNetwork(width=8)
    fluid.default_startup_program().random_seed = 3
    fluid.optimizer.SGD(0.01).minimize(network.loss)
    dataset = network.dataset(synthetic_clicks(tmp_path, files=1, lines=200))
    exe, found = fluid.Executor(), []
    for by_dataset in (True, False):
        with fluid.scope_guard(fluid.Scope()):
            exe.run(fluid.default_startup_program())
            if by_dataset:
                exe.train_from_dataset(dataset=dataset)
            else:
                for feed in dataset:
                    exe.run(feed=feed)
            found.append(np.array(fluid.global_scope().find_var("fc_0.w_0").get_tensor()))
    np.testing.assert_array_equal(found[0], found[1])


def test_a_program_that_trains_does_not_infer(tmp_path: Path) -> None:
    network = ClickNetwork(width=4)
    fluid.optimizer.SGD(0.01).minimize(network.loss)
    with pytest.raises(ConfigError, match=f"{Path(__file__).name}.*for_test=True"):
        fluid.Executor().infer_from_dataset(
            dataset=network.dataset(synthetic_clicks(tmp_path, 1, 5))
        )


def test_wrong_arguments(tmp_path: Path) -> None:
    network = ClickNetwork(width=4)
    dataset = network.dataset(synthetic_clicks(tmp_path, 1, 5))
    exe = fluid.Executor()
    with pytest.raises(RuntimeError, match="dataset is need"):
        exe.train_from_dataset()
    with pytest.raises(AssertionError, match="expected one text per variable"):
        exe.train_from_dataset(dataset=dataset, fetch_list=[network.auc], fetch_info=[])
    dataset.set_thread(0)
    with pytest.raises(RuntimeError, match="set_thread"):
        exe.train_from_dataset(dataset=dataset)


def test_an_error_in_a_thread_stops_all_and_is_raised(tmp_path: Path) -> None:
    network = ClickNetwork(width=4)
    fluid.optimizer.SGD(0.01).minimize(network.loss)
    dataset = network.dataset(synthetic_clicks(tmp_path), threads=2)
    with pytest.raises(ValueError, match="has no value in the scope"):
        fluid.Executor().train_from_dataset(dataset=dataset)


@pytest.mark.parametrize("by_name", [False, True])
def test_a_handler_sees_values_on_the_way(tmp_path: Path, by_name: bool) -> None:
    network = ClickNetwork(width=4)
    fluid.optimizer.SGD(0.01).minimize(network.loss)

    seen: list[Any] = []

    class Seen(fluid.FetchHandler):
        def handler(self, res_dict: dict[str, Any]) -> None:
            seen.extend(value for value in res_dict.values() if value is not None)

    wanted = network.loss.name if by_name else {"loss": network.loss, "other": None}
    handler = Seen(wanted, period_secs=0.001)
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    dataset = network.dataset(synthetic_clicks(tmp_path))
    for _ in range(20):
        exe.train_from_dataset(dataset=dataset, fetch_handler=handler)
        if seen:
            break
    assert seen[0].shape == (1,)


def test_words_are_learned_from_their_neighbours() -> None:
    """Like word2vec: the centre word, one true and some sampled words, all rows in tables."""
    center, target = (fluid.data(name, [None, 1], "int64") for name in ("center", "target"))
    label = fluid.data("label", [None, 1])
    rows = [
        L.reshape(
            fluid.embedding(ids, [50, 8], is_sparse=True, param_attr=fluid.ParamAttr(name=name)),
            [-1, 8],
        )
        for ids, name in ((center, "emb"), (target, "emb_w"))
    ]
    logit = L.reduce_sum(L.elementwise_mul(*rows), dim=1, keep_dim=True)
    loss = L.mean(L.sigmoid_cross_entropy_with_logits(logit, label))
    rate = L.exponential_decay(1.0, decay_steps=100, decay_rate=0.9)
    fluid.optimizer.Adagrad(rate).minimize(loss)
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    generator, losses = np.random.default_rng(0), []
    for _ in range(60):
        words = generator.integers(0, 50, (64, 1))
        others = np.where(
            generator.random((64, 1)) < 0.5, words ^ 1, generator.integers(0, 50, (64, 1))
        )
        feed = {"center": words, "target": others, "label": (others == words ^ 1).astype("float32")}
        losses.append(exe.run(feed=feed, fetch_list=[loss])[0].item())
    assert np.mean(losses[-5:]) < 0.5 * losses[0]


def test_digits_are_learned_by_layers_alone() -> None:
    """Like MNIST with fc layers: synthetic images with a bright quadrant, four classes."""
    image, label = fluid.data("image", [None, 1, 8, 8]), fluid.data("label", [None, 1], "int64")
    hidden = L.fc(image, 32, act="relu")
    predict = L.fc(hidden, 4, act="softmax")
    loss, accuracy = L.mean(L.cross_entropy(predict, label)), L.accuracy(predict, label)
    fluid.optimizer.Adam(0.01).minimize(loss)
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    generator = np.random.default_rng(0)
    for _ in range(40):
        labels = generator.integers(0, 4, (32, 1))
        images = generator.normal(size=(32, 1, 8, 8)).astype("float32")
        for picture, (which,) in zip(images, labels, strict=True):
            row, column = divmod(int(which), 2)
            picture[0, row * 4 : row * 4 + 4, column * 4 : column * 4 + 4] += 1.0
        (found,) = exe.run(feed={"image": images, "label": labels}, fetch_list=[accuracy])
    assert found.item() > 0.9
