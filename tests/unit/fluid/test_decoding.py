"""Cells and decoders, beyond the recorded values of the original."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparsefleet import fluid


@pytest.fixture(autouse=True)
def program() -> Any:
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
    main.random_seed = startup.random_seed = 1
    with fluid.program_guard(main, startup), fluid.unique_name.guard(), fluid.scope_guard(scope):
        yield main


def started() -> Any:
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    return exe


def test_network_begins_with_the_states_given_and_learns_them() -> None:
    x = fluid.data("x", [None, 4, 3])
    init = fluid.layers.fc(fluid.data("y", [None, 2]), 2)
    cell = fluid.layers.LSTMCell(2)
    out, (hidden, _) = fluid.layers.rnn(cell, x, [init, init])
    loss = fluid.layers.mean(fluid.layers.square(hidden - 0.5))
    fluid.optimizer.Adam(0.05).minimize(loss)
    exe = started()
    feed = {"x": np.ones((2, 4, 3), "float32"), "y": np.ones((2, 2), "float32")}
    losses = [exe.run(feed=feed, fetch_list=[loss])[0].item() for _ in range(30)]
    assert losses[-1] < 0.1 * losses[0]
    assert out.shape == (-1, 4, 2)


def test_parameters_of_cells_are_saved_under_their_names(tmp_path: Path) -> None:
    x = fluid.data("x", [None, 4, 3])
    out, _ = fluid.layers.rnn(fluid.layers.GRUCell(2), x)
    exe = started()
    feed = {"x": np.ones((2, 4, 3), "float32")}
    (before,) = exe.run(feed=feed, fetch_list=[out])
    fluid.io.save_inference_model(str(tmp_path), ["x"], [out], exe)
    with fluid.scope_guard(fluid.Scope()):
        program, names, targets = fluid.io.load_inference_model(str(tmp_path), exe)
        (after,) = exe.run(program, feed={names[0]: feed["x"]}, fetch_list=targets)
    np.testing.assert_array_equal(before, after)


def test_sampled_words_follow_the_probabilities() -> None:
    start = fluid.data("start", [None], "int64")

    def likely(inputs: Any) -> Any:
        # Words 2 and 3 are likely, all others impossible.
        chances = fluid.layers.assign(np.array([[-99.0, -99.0, 0.0, 0.0]], "float32"))
        return fluid.layers.elementwise_add(fluid.layers.fc(inputs, 4) * 0.0, chances)

    def embed(ids: Any) -> Any:
        return fluid.embedding(ids, [4, 3])

    class Nothing(fluid.layers.RNNCell):
        def call(self, inputs: Any, states: Any, **kwargs: Any) -> Any:
            del kwargs
            return inputs, states

    helper = fluid.layers.SampleEmbeddingHelper(embed, start, 1, softmax_temperature=1.0, seed=7)
    decoder = fluid.layers.BasicDecoder(Nothing(), helper, likely)
    state = fluid.layers.fill_constant_batch_size_like(start, [-1, 1], "float32", 0.0)
    out, _ = fluid.layers.dynamic_decode(decoder, inits=state, max_step_num=9)
    (ids,) = started().run(feed={"start": np.zeros(50, "int64")}, fetch_list=[out.sample_ids])
    assert ids.shape == (50, 10)
    assert set(ids.reshape(-1).tolist()) == {2, 3}


def test_own_decoder_without_finalize_is_run() -> None:
    class Counting(fluid.layers.Decoder):
        """Counts down; finished at 0."""

        def initialize(self, inits: Any) -> Any:
            return inits, inits, fluid.layers.cast(inits * 0, "bool")

        def step(self, time: Any, inputs: Any, states: Any, **kwargs: Any) -> Any:
            del time, kwargs
            left = states - 1
            done = fluid.layers.less_equal(left, left * 0)
            return inputs * 10, left, left, done

    begin = fluid.data("begin", [None], "int64")
    out, last, lengths = fluid.layers.dynamic_decode(
        Counting(), inits=begin, impute_finished=True, return_length=True
    )
    found = fluid.Executor().run(
        feed={"begin": np.array([3, 1], "int64")}, fetch_list=[out, last, lengths]
    )
    assert [each.tolist() for each in found] == [[[30, 20, 10], [10, 0, -10]], [0, 0], [3, 1]]


def test_a_cell_with_a_wrong_number_of_states_is_refused() -> None:
    class Wrong(fluid.layers.RNNCell):
        def call(self, inputs: Any, states: Any, **kwargs: Any) -> Any:
            del kwargs
            return inputs, [states, states]

    x = fluid.data("x", [None, 4, 3])
    state = fluid.layers.fill_constant_batch_size_like(x, [-1, 3], "float32", 0.0)
    with pytest.raises(fluid.framework.ProgramError, match="2 states, expected 1"):
        fluid.layers.rnn(Wrong(), x, state)


def test_evaluators_add_up_and_begin_again() -> None:
    inputs = [fluid.data(name, [None, 1], "int64", 1) for name in ("found", "wanted")]
    texts = fluid.evaluator.EditDistance(*inputs)
    chunks = fluid.evaluator.ChunkEvaluator(*inputs, "IOB", 1)
    exe = started()
    found, wanted = np.array([[0], [1], [2], [0]]), np.array([[0], [1], [2], [2]])
    feed = {
        "found": fluid.create_lod_tensor(found, [[2, 2]]),
        "wanted": fluid.create_lod_tensor(wanted, [[2, 2]]),
    }
    for _ in range(2):
        texts.reset(exe)
        chunks.reset(exe)
        for _ in range(3):
            exe.run(feed=feed, fetch_list=texts.metrics + chunks.metrics)
        assert [value.item() for value in texts.eval(exe)] == [0.25, 0.5]
        assert [round(value.item(), 4) for value in chunks.eval(exe)] == [0.5, 1.0, 0.6667]


def state_cell(first: Any) -> Any:
    from sparsefleet.fluid.contrib.decoder.beam_search_decoder import InitState, StateCell

    cell = StateCell({"word": None}, {"h": InitState(first, need_reorder=True)}, "h")

    @cell.state_updater
    def update(cell: Any) -> None:
        inputs = [cell.get_state("h"), cell.get_input("word")]
        cell.set_state("h", fluid.layers.fc(inputs, 4, act="tanh"))

    return cell


def test_a_cell_trains_over_target_sequences() -> None:
    from sparsefleet.fluid.contrib.decoder.beam_search_decoder import TrainingDecoder

    words = fluid.data("words", [None, 1], "int64", lod_level=1)
    wanted = fluid.data("wanted", [None, 1], "int64", lod_level=1)
    rows = fluid.layers.embedding(words, [6, 3])
    decoder = TrainingDecoder(state_cell(fluid.data("first", [None, 4])))
    with decoder.block():
        word = decoder.step_input(rows)
        decoder.state_cell.compute_state({"word": word})
        scores = fluid.layers.fc(decoder.state_cell.get_state("h"), 6, act="softmax")
        decoder.state_cell.update_states()
        decoder.output(scores)
    loss = fluid.layers.mean(fluid.layers.cross_entropy(decoder(), wanted))
    fluid.optimizer.Adam(0.05).minimize(loss)
    exe, ids = started(), np.array([[0], [2], [3], [0], [4]])
    feed = {
        "words": fluid.create_lod_tensor(ids, [[3, 2]]),
        "wanted": fluid.create_lod_tensor((ids + 1) % 6, [[3, 2]]),
        "first": np.ones((2, 4), "float32"),
    }
    losses = [exe.run(feed=feed, fetch_list=[loss])[0].item() for _ in range(40)]
    assert losses[-1] < 0.3 * losses[0]


def test_a_beam_keeps_the_best_sequences_of_each_source() -> None:
    from sparsefleet.fluid.contrib.decoder.beam_search_decoder import BeamSearchDecoder

    ids = fluid.data("ids", [None, 1], "int64", lod_level=2)
    scores = fluid.data("scores", [None, 1], lod_level=2)
    first = fluid.data("first", [None, 4], lod_level=1)
    decoder = BeamSearchDecoder(
        state_cell(first), ids, scores, 6, 3, topk_size=4, max_len=3, beam_size=2, end_id=1
    )
    decoder.decode()
    found_ids, found_scores = decoder()
    lod = [[1, 1], [1, 1]]
    feed = {
        "ids": fluid.create_lod_tensor(np.zeros((2, 1), "int64"), lod),
        "scores": fluid.create_lod_tensor(np.ones((2, 1), "float32"), lod),
        "first": fluid.create_lod_tensor(np.eye(2, 4, dtype="float32"), [[1, 1]]),
    }
    fetched = started().run(feed=feed, fetch_list=[found_ids, found_scores], return_numpy=False)
    assert [len(level) for level in fetched[0].recursive_sequence_lengths()] == [2, 4]
    assert all(2 <= length <= 4 for length in fetched[0].recursive_sequence_lengths()[1])
    assert fetched[0].lod() == fetched[1].lod()


def test_a_cell_is_in_one_decoder_at_a_time() -> None:
    from sparsefleet.fluid.contrib.decoder.beam_search_decoder import StateCell, TrainingDecoder

    cell = state_cell(fluid.data("first", [None, 4]))
    decoder = TrainingDecoder(cell)
    with pytest.raises(ValueError, match="already in a decoder"):
        TrainingDecoder(cell)
    with pytest.raises(ValueError, match="within"):
        decoder.step_input(fluid.data("x", [None, 4], lod_level=1))
    with pytest.raises(ValueError, match="InitState"):
        StateCell({}, {"h": fluid.data("h", [None, 4])}, "h")  # type: ignore[dict-item]
