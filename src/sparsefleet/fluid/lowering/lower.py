"""Lower the operators that fetches need or that have side effects to a torch graph."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Sequence
from difflib import get_close_matches
from typing import Any

import torch
from torch import fx

from sparsefleet.fluid.framework import Block, Operator, Parameter, Program, Variable
from sparsefleet.fluid.framework.call_site import ProgramError, call_site
from sparsefleet.fluid.framework.flags import checks_nan_inf
from sparsefleet.fluid.lowering.body import (
    Body,
    check_finite,
    copied,
    detached,
    first_lod,
    lod_of_output,
    read_first,
    run_with_body,
    tracked,
    with_clipped_gradient,
)
from sparsefleet.fluid.lowering.fusion import fused_operators
from sparsefleet.fluid.lowering.graph_parts import (
    checkpoints_of,
    nodes_after,
    recompute,
    segments_of,
)
from sparsefleet.fluid.lowering.lowered import Lod, Lowered, recorded
from sparsefleet.fluid.lowering.pruning import needed_operators
from sparsefleet.fluid.lowering.registry import OpDef
from sparsefleet.fluid.lowering.shapes import flat_outputs, operator_def, slot_values
from sparsefleet.fluid.lowering.tables import TableLowering

__all__ = ["lower"]


def lower(
    program: Program,
    feeds: Collection[str],
    fetches: Sequence[str],
    *,
    with_lod: Collection[str] = (),
    device: torch.device | None = None,
) -> Lowered:
    """Lower a program for these feeds and fetches.

    with_lod: the feeds that have a LoD. device: see `Lowered`.
    """
    lowering = _Lowering(program, program.global_block(), fetches, device=device)
    return lowering.whole(feeds, with_lod)


class _Lowering:
    """Builds the graph of a block; tracks the latest node of each variable's value and LoD."""

    def __init__(
        self,
        program: Program,
        block: Block,
        fetches: Sequence[str],
        outer: _Lowering | None = None,
        *,
        device: torch.device | None = None,
    ) -> None:
        self.program = program
        self.block = block
        self.vars = block.visible_vars()
        self.device: torch.device | None = outer.device if outer else device
        self.graph = fx.Graph()
        self.ops = needed_operators(block, fetches)
        if outer is None:
            self.ops = fused_operators(program, self.ops, {*fetches, *checkpoints_of(self.ops)})
        trains = any(op.type == "backward" for op in self.ops)
        self.has_backward: bool = outer.has_backward if outer else trains
        self._has_checkpoints = bool(checkpoints_of(self.ops))
        # Setting `stop_gradient` after minimize has no effect on it.
        self.sources: set[str] = outer.sources if outer else _sources_in(self.ops)
        # Values that a run computes gradients for, even if they do not depend on any parameter.
        self.tracked: set[str] = outer.tracked if outer else _used_sources(self.ops, fetches)
        self.values: dict[str, fx.Node] = {}
        self.lods: dict[str, fx.Node] = {}
        self.writes: dict[str, fx.Node] = {}
        self.trained: set[str] = set()
        self._fetches = fetches
        self._feeds: list[str] = []
        self.tables = TableLowering(self)
        self._again: list[list[fx.Node]] = []  # run again in the backward pass
        self.generators: list[torch.Generator] = outer.generators if outer else []
        # Values that operators with side effects may change in place.
        self._changed: set[fx.Node] = set()

    def whole(self, feeds: Collection[str], with_lod: Collection[str]) -> Lowered:
        """Lower the block as a program, with feeds and persistent variables."""
        self._place(feeds, with_lod)
        fed = {self.values[name]: name for name in self._feeds}
        fed_lods = [self.lods[name] for name in self._lod_feeds]
        self.tables.begin()
        self._add_all(segments_of(self.ops, self.tables.reads))
        fetched = tuple(self.value(name, None) for name in self._fetches)
        lods = tuple(self.lods.get(name, ()) for name in self._fetches)
        results = (fetched, lods, tuple(self.writes.values()))
        plan, moved = self.tables.plan(fed, fed_lods, self._changed)
        self._drop_unused(moved, results)
        return Lowered(
            module=self._module(results),
            feeds=tuple(self._feeds),
            lods=tuple(self._lod_feeds),
            states=tuple(self._states),
            writes=tuple(self.writes),
            plan=plan,
            trained=frozenset(self.trained),
            used=frozenset(name for op in self.ops for name in op.input_arg_names),
            has_backward=self.has_backward,
            sends=any(op.type == "send" for op in self.ops),
            generators=tuple(self.generators),
            device=self.device,
        )

    def body(self) -> Body:
        """Lower the block as a function of variables in enclosing blocks."""
        inputs = read_first(self.ops, self._fetches)
        self.tables.rows = self.graph.placeholder("rows")
        for name in inputs:
            self.values[name] = self.graph.placeholder(f"value_{_identifier(name)}")
        for name in inputs:
            self.lods[name] = self.graph.placeholder(f"lod_{_identifier(name)}")
        self._add_all()
        made = tuple(self.values[name] for name in self._fetches)
        lods = tuple(self.lods.get(name, ()) for name in self._fetches)
        return Body(self._module((made, lods)), inputs, tuple(self._fetches))

    def value(self, name: str, op: Operator | None) -> fx.Node:
        """Return the node for a variable's current value; raise ProgramError if it has none."""
        node = self.values.get(name)
        if node is not None:
            return node
        site, what = (op.site, op.type) if op else (call_site(), f"fetch '{name}'")
        if name not in self.vars:
            near = get_close_matches(name, self.vars)
            hint = f"; similar names: {', '.join(near)}" if near else ""
            raise ProgramError.at(site, what, f"there is no variable '{name}' in the program{hint}")
        if self.vars[name].is_data:
            fed = f"fed were {', '.join(self._feeds)}" if self._feeds else "nothing was fed"
            raise ProgramError.at(site, what, f"needs '{name}', which was not fed; {fed}")
        raise ProgramError.at(site, what, f"needs '{name}', which no earlier operator computes")

    def call(self, name: str, target: Callable[..., Any], /, *args: Any, **kwargs: Any) -> fx.Node:
        """Create a node that calls `target`."""
        node = self.graph.call_function(target, args, kwargs)
        node.name = self.graph._graph_namespace.create_name(name, None)
        return node

    def stops(self, variable: Variable) -> bool:
        """Return whether gradients stop at this variable."""
        return variable.stop_gradient and variable.name not in self.sources

    # -- internals ----------------------------------------------------------------------------

    def _place(self, feeds: Collection[str], with_lod: Collection[str]) -> None:
        """Add placeholders for fed or persistent variables named by an operator or fetch."""
        named = {name for op in self.ops for name in op.input_arg_names} | set(self._fetches)
        named |= {
            name for op in self.ops if operator_def(op).in_place for name in op.output_arg_names
        }
        unread = self._made_before_read()
        self._feeds = [name for name in feeds if name in named]
        self._lod_feeds = [name for name in self._feeds if name in with_lod]
        self._states = [
            name
            for name, variable in self.vars.items()
            if variable.persistable
            and name in named
            and name not in self._feeds
            and name not in unread
        ]
        for name in self._feeds:
            self.values[name] = self.graph.placeholder(f"feed_{_identifier(name)}")
        for name in self._lod_feeds:
            self.lods[name] = self.graph.placeholder(f"lod_{_identifier(name)}")
        for name in self._states:
            self.values[name] = self.graph.placeholder(f"state_{_identifier(name)}")
            variable = self.vars[name]
            if isinstance(variable, Parameter) and not self.stops(variable):
                self.trained.add(name)

    def _made_before_read(self) -> set[str]:
        """Return the variables that are computed before they are read, so stored values are not
        needed.
        """
        used: set[str] = set()
        made: set[str] = set()
        for op in self.ops:
            used.update(name for name in op.input_arg_names if name not in made)
            outputs = [name for name in op.output_arg_names if name not in made]
            if operator_def(op).in_place:
                used.update(outputs)
            else:
                made.update(name for name in outputs if name not in used)
        return made

    def _add_all(self, segments: Sequence[range] = ()) -> None:
        begins = {segment.start for segment in segments}
        ends = {segment.stop - 1 for segment in segments}
        last: fx.Node | None = None
        for index, op in enumerate(self.ops):
            if index in begins:
                last = next(reversed(self.graph.nodes), None)
            self._add(op, index)
            if index in ends:
                self._again.append(nodes_after(self.graph, last))

    def _add(self, op: Operator, index: int) -> None:
        if op.type == "backward":
            self._add_backward(op)
        elif op.has_sub_block:
            self._add_with_body(op)
        elif not self.tables.add(op):
            self._add_function(op, index)

    def _drop_unused(self, nodes: Collection[fx.Node], results: tuple[Any, ...]) -> None:
        """Remove nodes that neither other nodes nor the results use."""
        kept: set[fx.Node] = set()
        fx.map_arg(results, kept.add)
        for node in reversed(list(self.graph.nodes)):
            if node in nodes and node not in kept and not node.users:
                self.graph.erase_node(node)
                self._again = [[x for x in again if x is not node] for again in self._again]

    def _module(self, output: tuple[Any, ...]) -> fx.GraphModule:
        self.graph.output(output)
        for nodes in self._again:
            recompute(self.graph, nodes)
        self.graph.lint()
        return fx.GraphModule(torch.nn.Module(), self.graph)

    def _add_with_body(self, op: Operator) -> None:
        """Add an operator that runs another block; it takes and returns values with their LoD."""
        definition = operator_def(op)
        block = self.program.blocks[op.attrs["sub_block"]]
        settings = {key: value for key, value in op.attrs.items() if key in definition.settings}
        body = _Lowering(self.program, block, op.attrs["results"], self).body()
        names = list(dict.fromkeys(op.input_arg_names))
        # A variable without a value may get one in the body.
        needed = [name for name in names if name in self.values or self._comes_from_outside(name)]
        target = _located(definition, op, None, run_with_body(definition.function, body, needed))
        held = [(self.value(name, op), self.lods.get(name, ())) for name in needed]
        node = self.call(op.type, target, self.tables.rows, held, **settings)
        for place, name in enumerate(op.output_arg_names):
            pair = self._item(node, place)
            self.put(name, op, self._item(pair, 0), self._item(pair, 1))

    def _comes_from_outside(self, name: str) -> bool:
        return self.vars[name].is_data or self.vars[name].persistable

    def _add_function(self, op: Operator, index: int) -> None:
        definition = operator_def(op)
        value_of = self._sent if op.type == "send" else self.value
        inputs = slot_values(definition, op, lambda name: value_of(name, op))
        settings = {key: value for key, value in op.attrs.items() if key in definition.settings}
        target = _located(definition, op, self._generator(definition, op, index))
        rule = definition.lod_rule(op.attrs)
        if rule == "function":
            settings["lods"] = slot_values(definition, op, lambda name: self.lods.get(name, ()))
        node = self.call(op.type, target, *inputs, **settings)
        if definition.has_effect and op.type != "print":
            self._changed.update(node.all_input_nodes)
        lod: fx.Node | None = None
        if rule in ("share", "rows"):
            lods = [self.lods[name] for name in op.input_arg_names if name in self.lods]
            lod = self.call("lod", first_lod, *lods) if len(lods) > 1 else next(iter(lods), None)
            if rule == "rows" and lod is not None:
                lod = self.call("lod", _lod_of_rows, lod, node)
        elif rule == "function":
            node, lod = self._item(node, 0), self._item(node, 1)
        if not definition.in_place:
            self._take_outputs(op, definition, node, lod)

    def _sent(self, name: str, op: Operator) -> fx.Node:
        """Return the node for a gradient to pass to the step, copied if it is also used
        elsewhere.
        """
        node = self.value(name, op)
        is_seen = name in self._fetches or self.vars[name].persistable
        return self.call("copied", copied, node) if is_seen else node

    def _take_outputs(
        self, op: Operator, definition: OpDef, node: fx.Node, lod: fx.Node | None
    ) -> None:
        single = len(definition.outputs) == 1 and not definition.outputs[0].many
        place = 0
        for slot in definition.outputs:
            names = op.output(slot.name)
            for offset, name in enumerate(names):
                own = lod
                if lod is not None and not single and definition.lod_rule(op.attrs) == "function":
                    own = self.call("lod", lod_of_output, lod, place + offset)
                self.put(name, op, node if single else self._item(node, place + offset), own)
            place += len(names) if slot.many else 1

    def put(self, name: str, op: Operator, node: fx.Node, lod: fx.Node | None = None) -> None:
        """Set the current value of a variable."""
        variable: Variable = self.vars[name]
        if variable.persistable:
            self.writes[name] = node
        elif self.stops(variable) and self.has_backward and op.role == "forward":
            node = self.graph.call_function(detached, (node,))
        elif name in self.tracked and not self.tracked.intersection(op.input_arg_names):
            node = self.graph.call_function(tracked, (node,))
        if variable.error_clip is not None and op.role == "forward" and self.has_backward:
            limits = (variable.error_clip.min, variable.error_clip.max)
            node = self.graph.call_function(with_clipped_gradient, (node, *limits))
        self.values[name] = node
        self.lods.pop(name, None)
        if lod is not None:
            self.lods[name] = lod

    def _item(self, node: fx.Node, index: int) -> fx.Node:
        return self.graph.call_function(operator.getitem, (node, index))

    def _add_backward(self, op: Operator) -> None:
        later = self.ops[self.ops.index(op) + 1 :]
        used = {name for other in later for name in other.input_arg_names} | set(self._fetches)
        pairs = list(zip(op.attrs["sources"], op.output("Gradients"), strict=True))
        pairs = [(source, gradient) for source, gradient in pairs if gradient in used]
        dense = [pair for pair in pairs if not self.tables.holds(pair[0])]
        given = {*self._feeds, *self._states}
        self.trained.update(source for source, _ in dense if source in given)
        again = any(other.type == "backward" for other in later)
        inputs = slot_values(operator_def(op), op, lambda name: self.value(name, op))
        sources = [self.value(source, op) for source, _ in dense]
        target = _located(operator_def(op), op, None)
        into_rows = len(dense) < len(pairs)
        if into_rows and sum(other.type == "backward" for other in self.ops) > 1:
            raise ProgramError.at(
                op.site,
                "backward",
                "the program has several losses, and one of them trains an embedding with "
                "is_sparse=True; use is_sparse=False, or sum the losses",
            )
        settings = {
            "sources": sources,
            "again": again,
            "into_rows": into_rows,
            "has_gradients": again and self._leads_to_loss(op, later),
            "scale": op.attrs.get("scale", 1.0),
        }
        node = self.call("backward", target, *inputs, **settings)
        for index, (_, gradient) in enumerate(dense):
            self.put(gradient, op, self._item(node, index))
        for source, gradient in pairs:
            if self.tables.holds(source):
                self.put(gradient, op, self.tables.gradient(source, node, op))

    def _leads_to_loss(self, op: Operator, later: Sequence[Operator]) -> bool:
        """Return whether a later backward pass's loss depends on the gradients of this one."""
        reached = {name for name in op.output("Gradients") if not self.vars[name].stop_gradient}
        for other in later:
            if reached.intersection(other.input_arg_names):
                if other.type == "backward":
                    return True
                reached.update(other.output_arg_names)
        return False

    def _generator(self, definition: OpDef, op: Operator, index: int) -> torch.Generator | None:
        if "generator" not in definition.settings:
            return None
        seed = op.attrs.get("seed") or (
            self.program.random_seed and self.program.random_seed + 1000 * self.block.idx + index
        )
        if not seed and self._has_checkpoints:  # other threads use the default one
            seed = int(torch.randint(1, 2**62, ()))
        if not seed:
            return None
        made = torch.Generator(self.device or "cpu").manual_seed(int(seed))
        self.generators.append(made)
        return made


def _sources_in(ops: Sequence[Operator]) -> set[str]:
    return {name for op in ops if op.type == "backward" for name in op.attrs["sources"]}


def _used_sources(ops: Sequence[Operator], fetches: Sequence[str]) -> set[str]:
    """Return the variables whose gradient is fetched or read by another operator."""
    used = {name for op in ops for name in op.input_arg_names} | set(fetches)
    return {
        source
        for op in ops
        if op.type == "backward"
        for source, gradient in zip(op.attrs["sources"], op.output("Gradients"), strict=True)
        if gradient in used
    }


def _located(
    definition: OpDef,
    op: Operator,
    generator: torch.Generator | None,
    function: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """Wrap a function so that its errors name the user's line."""
    function, site = function or definition.function, op.site
    single = len(definition.outputs) == 1 and not definition.outputs[0].many
    by_lod = definition.lod_rule(op.attrs) == "function"
    hidden = {} if generator is None else {"generator": generator}
    # In a seeded program, values drawn without inputs are the same in every run, as in Fluid.
    restart = generator is not None and not op.input_arg_names

    checks = checks_nan_inf()

    def call(*args: Any, **kwargs: Any) -> Any:
        if restart and generator is not None:
            generator.manual_seed(generator.initial_seed())
        try:
            result = function(*args, **kwargs, **hidden)
        except ProgramError:
            raise
        except (RuntimeError, ValueError, IndexError, TypeError, AttributeError) as error:
            for slot, given in zip(definition.inputs, args, strict=False):
                if given is None and not (slot.optional or slot.many):
                    name = op.input(slot.name)[0]
                    message = (
                        f"needs '{name}', which has no value because no operator has computed it"
                    )
                    raise ProgramError.at(site, definition.type, message) from error
            given = ", ".join(str(tuple(x.shape)) for x in args if isinstance(x, torch.Tensor))
            message = f"failed on inputs of shape {given}: {error}"
            raise ProgramError.at(site, definition.type, message) from error
        if checks:
            check_finite(op, result[0] if by_lod else result)
        if by_lod:
            return (result[0] if single else flat_outputs(result[0])), result[1]
        return result if single else flat_outputs(result)

    made = recorded(definition.type, call)
    made.generator = generator  # type: ignore[attr-defined]
    # Whether it always returns the same result for the same inputs and has no side effects.
    is_pure = function is definition.function and not definition.has_effect
    made.is_pure = is_pure and "generator" not in definition.settings  # type: ignore[attr-defined]
    return made


def _lod_of_rows(lod: Lod, made: torch.Tensor) -> Lod:
    """Return the LoD if it matches the number of rows in the result, otherwise an empty LoD."""
    return lod if lod and made.dim() and len(made) == int(lod[-1][-1]) else ()


def _identifier(name: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in name)
