"""Metrics that the program itself accumulates over the batches of a pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sparsefleet.fluid import layers
from sparsefleet.fluid.framework import Program, Variable, program_guard, unique_name
from sparsefleet.fluid.framework.scope import global_scope
from sparsefleet.fluid.operators.layer_helper import LayerHelper
from sparsefleet.fluid.paths import unknown_names

__getattr__ = unknown_names("fluid.evaluator")

__all__ = ["ChunkEvaluator", "DetectionMAP", "EditDistance", "Evaluator"]


class Evaluator:
    """Base class for metrics that keep totals in the scope.

    states: variables that hold totals.
    metrics: variables to fetch for each batch.
    """

    def __init__(self, name: str) -> None:
        self.helper = LayerHelper(name)
        self.states: list[Variable] = []
        self.metrics: list[Variable] = []

    def reset(self, executor: Any, reset_program: Program | None = None) -> None:
        """Set all totals to zero; must be called before each pass."""
        program = Program() if reset_program is None else reset_program
        with program_guard(program):
            for state in self.states:
                made = program.global_block().add_var(state.copy())
                layers.fill_constant(state.shape, state.dtype, 0, out=made)
        executor.run(program)

    def eval(self, executor: Any, eval_program: Program | None = None) -> Any:
        """Return the metrics for the pass so far."""
        raise NotImplementedError(f"{type(self).__name__} has no eval(executor)")

    def _create_state(self, suffix: str, dtype: Any, shape: Sequence[int]) -> Variable:
        name = "_".join([unique_name.generate(self.helper.name), suffix])
        made = self.helper.create_state(name, list(shape), dtype)
        self.states.append(made)
        return made

    def _add(self, state: Variable, value: Variable) -> None:
        self.helper.append_op("sum", {"X": [state, value]}, {"Out": state})

    def _totals(self) -> list[float]:
        held = [global_scope().find_var(state.name) for state in self.states]
        return [float(np.array(each.get_tensor()).item()) for each in held if each is not None]


class ChunkEvaluator(Evaluator):
    """Computes precision, recall and F1 of chunks; see `layers.chunk_eval` for the arguments."""

    def __init__(
        self,
        input: Variable,
        label: Variable,
        chunk_scheme: str,
        num_chunk_types: int,
        excluded_chunk_types: Sequence[int] | None = None,
    ) -> None:
        super().__init__("chunk_eval")
        found = layers.chunk_eval(input, label, chunk_scheme, num_chunk_types, excluded_chunk_types)
        self.metrics.extend(found[:3])
        for suffix, count in zip(("infer", "label", "correct"), found[3:], strict=True):
            self._add(self._create_state(f"num_{suffix}_chunks", "int64", [1]), count)

    def eval(self, executor: Any, eval_program: Program | None = None) -> Any:
        """Return precision, recall and F1: float32[1] each."""
        del executor, eval_program
        found, there, right = self._totals()
        precision = right / found if found else 0.0
        recall = right / there if there else 0.0
        score = 2 * precision * recall / (precision + recall) if right else 0.0
        return tuple(np.array([value], "float32") for value in (precision, recall, score))


class EditDistance(Evaluator):
    """Computes the mean edit distance and the fraction of sequences with errors."""

    def __init__(
        self,
        input: Variable,
        label: Variable,
        ignored_tokens: Sequence[int] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__("edit_distance")
        distances, count = layers.edit_distance(
            input, label, ignored_tokens=ignored_tokens, **kwargs
        )
        zero = layers.fill_constant([1], "float32", 0.0)
        right = layers.reduce_sum(layers.cast(layers.equal(distances, zero), "int64"))
        wrong = layers.elementwise_sub(count, right)
        total = layers.reduce_sum(distances)
        self._add(self._create_state("total_distance", "float32", [1]), total)
        self._add(self._create_state("seq_num", "int64", [1]), count)
        self._add(self._create_state("instance_error", "int64", [1]), wrong)
        self.metrics.extend([total, wrong])

    def eval(self, executor: Any, eval_program: Program | None = None) -> Any:
        """Return the mean edit distance and the fraction of sequences with errors.

        Both are float32[1].
        """
        del executor, eval_program
        total, count, wrong = self._totals()
        count = max(count, 1.0)
        return np.array([total / count], "float32"), np.array([wrong / count], "float32")


class DetectionMAP(Evaluator):
    """Computes the mean average precision of detections; see `layers.detection_map`.

    input: detections, as rows (label, score, box). gt_label, gt_box, gt_difficult: the ground-truth
        boxes.
    """

    def __init__(
        self,
        input: Variable,
        gt_label: Variable,
        gt_box: Variable,
        gt_difficult: Variable | None = None,
        class_num: int | None = None,
        background_label: int = 0,
        overlap_threshold: float = 0.5,
        evaluate_difficult: bool = True,
        ap_version: str = "integral",
    ) -> None:
        super().__init__("map_eval")
        if class_num is None:
            raise ValueError("DetectionMAP: class_num is None; pass the number of classes")
        parts = [layers.cast(gt_label, gt_box.dtype), gt_box]
        if gt_difficult is not None:
            parts.insert(1, layers.cast(gt_difficult, gt_box.dtype))
        truth = layers.concat(parts, axis=1)
        settings: dict[str, Any] = {
            "class_num": class_num,
            "background_label": background_label,
            "overlap_threshold": overlap_threshold,
            "evaluate_difficult": evaluate_difficult,
            "ap_version": ap_version,
        }
        self.cur_map = layers.detection_map(input, truth, **settings)
        totals = [
            self._create_state("accum_pos_count", "int32", [class_num, 1]),
            self._create_state("accum_true_pos", "float32", [0, 3]),
            self._create_state("accum_false_pos", "float32", [0, 3]),
        ]
        self.has_state = self._create_state("has_state", "int32", [1])
        states: dict[str, Any] = {"has_state": self.has_state, "input_states": totals}
        states["out_states"] = totals
        self.accum_map = layers.detection_map(input, truth, **settings, **states)
        layers.fill_constant([1], "int32", 1, out=self.has_state)
        self.states = [self.has_state]  # the totals are used only while this flag is set
        self.metrics = [self.cur_map, self.accum_map]

    def get_map_var(self) -> tuple[Variable, Variable]:
        """Return the variables with the scores for the batch and for the pass so far."""
        return self.cur_map, self.accum_map

    def eval(self, executor: Any, eval_program: Program | None = None) -> Any:
        """Return the name of the variable with the pass's score, to be fetched with the last
        batch.
        """
        del executor, eval_program
        return self.accum_map
