"""The zoo's models reimplemented in plain torch on dense tables, example by example where that is
clearer.

Nothing of the zoo is imported. `p` holds the parameters by name, `t` a tensor [V, D] per table,
`batch` the inputs. Letters: B examples, F fields, D row width.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Named = dict[str, Tensor]

MAX_LENGTH = 4
AGE_MEAN, AGE_STD = 3.0, 2.0


def lists(ragged: tuple[Tensor, Tensor]) -> list[list[int]]:
    """The last ids of each example."""
    values, offsets = ragged
    ends = [*offsets.tolist()[1:], len(values)]
    return [
        values.tolist()[begin:end][-MAX_LENGTH:]
        for begin, end in zip(offsets.tolist(), ends, strict=True)
    ]


def mean_of(table: Tensor, ids: list[int]) -> Tensor:
    return torch.stack([table[i] for i in ids]).mean(0) if ids else torch.zeros(table.shape[1])


def root_mean_of(table: Tensor, ids: list[int]) -> Tensor:
    return mean_of(table, ids) * math.sqrt(len(ids))


def numbers(batch: dict[str, Any]) -> Tensor:
    age = ((batch["age"] + 1).log() - AGE_MEAN) / AGE_STD
    return torch.stack([age, batch["counts"][:, 0], batch["counts"][:, 1]], dim=1)


def fields(t: Named, batch: dict[str, Any], suffix: str = "") -> Tensor:
    """All fields but the history, in the order of the description: user, cats (2), tags, movie."""
    rows = []
    for example in range(len(batch["user"])):
        tags = root_mean_of(t["tags" + suffix], lists(batch["tags"])[example])
        rows.append(
            torch.stack(
                [
                    t["user" + suffix][batch["user"][example]],
                    t["cats" + suffix][batch["cats"][example, 0]],
                    t["cats" + suffix][batch["cats"][example, 1]],
                    tags,
                    t["movie" + suffix][batch["movie"][example]],
                ]
            )
        )
    return torch.stack(rows)


def flat(t: Named, batch: dict[str, Any]) -> Tensor:
    return torch.cat([fields(t, batch).flatten(1), numbers(batch)], dim=1)


def layers(p: Named, name: str, x: Tensor, *, last_is_linear: bool = True) -> Tensor:
    """The linear layers below a name, with ReLU between them."""
    places = sorted(
        int(key[len(name) + 1 :].split(".")[0])
        for key in p
        if key.startswith(f"{name}.") and key.endswith("weight")
    )
    for place in places:
        x = x @ p[f"{name}.{place}.weight"].T + p[f"{name}.{place}.bias"]
        if not (last_is_linear and place == places[-1]):
            x = x.clamp(min=0)
    return x


def linear_terms(p: Named, t: Named, batch: dict[str, Any], name: str) -> Tensor:
    ids = fields(t, batch, ".linear").sum((1, 2))
    return ids + numbers(batch) @ p[f"{name}.of_numbers.weight"][0] + p[f"{name}.bias"]


def ctr_dnn(p: Named, t: Named, batch: dict[str, Any]) -> Tensor:
    return ctr_dnn_of_classes(p, t, batch)[:, 0]


def ctr_dnn_of_classes(p: Named, t: Named, batch: dict[str, Any]) -> Tensor:
    return layers(p, "layers", flat(t, batch))


def wide_deep(p: Named, t: Named, batch: dict[str, Any]) -> Tensor:
    return linear_terms(p, t, batch, "wide") + layers(p, "deep", flat(t, batch))[:, 0]


def deepfm(p: Named, t: Named, batch: dict[str, Any]) -> Tensor:
    rows = fields(t, batch)
    pairs = torch.zeros(len(rows))
    for i in range(rows.shape[1]):
        for j in range(i):
            pairs = pairs + (rows[:, i] * rows[:, j]).sum(1)
    deep = layers(p, "deep", flat(t, batch))[:, 0]
    return linear_terms(p, t, batch, "linear") + pairs + deep


def xdeepfm(p: Named, t: Named, batch: dict[str, Any]) -> Tensor:
    first = state = fields(t, batch)
    pooled = []
    layer = 0
    while f"interactions.mixes.{layer}.weight" in p:
        weight = p[f"interactions.mixes.{layer}.weight"]
        weight = weight.view(len(weight), state.shape[1], first.shape[1])
        state = torch.einsum("bhd,bfd,nhf->bnd", state, first, weight)
        pooled.append(state.sum(2))
        layer += 1
    crossed = torch.cat(pooled, 1) @ p["of_interactions.weight"][0]
    deep = layers(p, "deep", flat(t, batch))[:, 0]
    return linear_terms(p, t, batch, "linear") + crossed + deep


def dcn_v2(p: Named, t: Named, batch: dict[str, Any]) -> Tensor:
    x0 = x = flat(t, batch)
    for layer in range(2):
        low = p[f"cross.layers.{layer}.0.weight"]
        high, bias = p[f"cross.layers.{layer}.1.weight"], p[f"cross.layers.{layer}.1.bias"]
        x = x0 * (torch.einsum("or,ri,bi->bo", high, low, x) + bias) + x
    deep = layers(p, "deep", x0, last_is_linear=False)
    weight, bias = p["head.weight"][0], p["head.bias"]
    return x @ weight[: x.shape[1]] + deep @ weight[x.shape[1] :] + bias


def autoint(p: Named, t: Named, batch: dict[str, Any]) -> Tensor:
    of_numbers = torch.einsum("bm,md->bmd", numbers(batch), p["of_numbers"])
    x = torch.cat([fields(t, batch), of_numbers], 1)
    heads, width = 2, 3
    for layer in range(2):
        weight = p[f"attention.{layer}.projections.weight"].view(3, heads, width, -1)
        mixed = []
        for head in range(heads):
            query, key, value = (
                torch.einsum("ad,bfd->bfa", weight[part, head], x) for part in range(3)
            )
            shares = torch.einsum("bfa,bga->bfg", query, key) / width**0.5
            mixed.append(torch.einsum("bfg,bga->bfa", shares.softmax(2), value))
        x = torch.cat(mixed, 2) + x @ p[f"attention.{layer}.residual.weight"].T
        x = x.clamp(min=0)
    deep = layers(p, "deep", flat(t, batch))[:, 0]
    return x.flatten(1) @ p["head.weight"][0] + p["head.bias"] + deep


def dlrm(p: Named, t: Named, batch: dict[str, Any]) -> Tensor:
    dense = layers(p, "bottom", numbers(batch), last_is_linear=False)
    rows = fields(t, batch)
    vectors = [dense, *(rows[:, i] for i in range(rows.shape[1]))]
    dots = [(vectors[i] * vectors[j]).sum(1) for i in range(len(vectors)) for j in range(i)]
    return layers(p, "top", torch.cat([dense, torch.stack(dots, 1)], 1))[:, 0]


def din(p: Named, t: Named, batch: dict[str, Any]) -> Tensor:
    interests = []
    for example, ids in enumerate(lists(batch["seen"])):
        candidate = t["movie"][batch["movie"][example]]
        interest = torch.zeros_like(candidate)
        for i in ids:
            row = t["movie"][i]
            pair = torch.cat([row, candidate, row - candidate, row * candidate])
            interest = interest + layers(p, "relevance.layers", pair[None])[0, 0] * row
        interests.append(interest)
    return layers(p, "layers", torch.cat([torch.stack(interests), flat(t, batch)], 1))[:, 0]


def gru_step(gates: Tensor, of_state: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The update gate and the candidate state, with the gates in the order of the zoo."""
    dim = len(state)
    update = torch.sigmoid(gates[:dim] + of_state[:dim])
    reset = torch.sigmoid(gates[dim : 2 * dim] + of_state[dim : 2 * dim])
    return update, torch.tanh(gates[2 * dim :] + reset * of_state[2 * dim :])


def dien(p: Named, t: Named, batch: dict[str, Any]) -> tuple[Tensor, Tensor]:
    dim = t["movie"].shape[1]
    interests, losses = [], []
    refused = lists(batch["unseen"])
    for example, ids in enumerate(lists(batch["seen"])):
        candidate = t["movie"][batch["movie"][example]]
        state = torch.zeros(dim)
        states = []
        for i in ids:  # torch's GRU has its gates in the order reset, update, new
            gates = p["extract.weight_ih_l0"] @ t["movie"][i] + p["extract.bias_ih_l0"]
            of_state = p["extract.weight_hh_l0"] @ state + p["extract.bias_hh_l0"]
            swap = torch.cat([torch.arange(dim, 2 * dim), torch.arange(dim)])
            order = torch.cat([swap, torch.arange(2 * dim, 3 * dim)])
            update, new = gru_step(gates[order], of_state[order], state)
            state = update * state + (1 - update) * new
            states.append(state)
        state = torch.zeros(dim)
        if states:
            scores = torch.stack([(p["attend.weight"] @ one) @ candidate for one in states])
            for weight, one in zip(scores.softmax(0), states, strict=True):
                gates = p["evolve.of_input.weight"] @ one + p["evolve.of_input.bias"]
                of_state = p["evolve.of_state.weight"] @ state + p["evolve.of_state.bias"]
                update, new = gru_step(gates, of_state, state)
                state = (1 - weight * update) * state + weight * update * new
        interests.append(state)
        for before, after, other in zip(states, ids[1:], refused[example][1:], strict=False):
            losses.append(-functional.logsigmoid(before @ t["movie"][after]))
            losses.append(-functional.logsigmoid(-(before @ t["movie"][other])))
    logits = layers(p, "layers", torch.cat([torch.stack(interests), flat(t, batch)], 1))[:, 0]
    return logits, torch.stack(losses).sum() / (len(losses) // 2)


def mmoe(p: Named, t: Named, batch: dict[str, Any]) -> Tensor:
    x = flat(t, batch)
    experts = [layers(p, f"experts.{e}", x, last_is_linear=False) for e in range(3)]
    found = []
    for task in range(2):
        gate = (x @ p[f"gates.{task}.weight"].T).softmax(1)
        mixed = sum(gate[:, e : e + 1] * experts[e] for e in range(3))
        found.append(layers(p, f"towers.{task}", mixed)[:, 0])
    return torch.stack(found, 1)


def ple(p: Named, t: Named, batch: dict[str, Any]) -> Tensor:
    states = [flat(t, batch)] * 3
    for layer in range(2):
        experts = [
            [
                layers(p, f"layers.{layer}.groups.{g}.{e}", states[g], last_is_linear=False)
                for e in (0, 1)
            ]
            for g in range(3)
        ]
        after = []
        for task in range(2):
            gate = (states[task] @ p[f"layers.{layer}.gates.{task}.weight"].T).softmax(1)
            chosen = [*experts[task], *experts[2]]
            after.append(sum(gate[:, [e]] * chosen[e] for e in range(4)))
        if layer == 0:
            gate = (states[2] @ p["layers.0.shared_gate.weight"].T).softmax(1)
            chosen = [*experts[0], *experts[1], *experts[2]]
            after.append(sum(gate[:, [e]] * chosen[e] for e in range(6)))
        states = after
    return torch.stack([layers(p, f"towers.{task}", states[task])[:, 0] for task in (0, 1)], 1)


def esmm(p: Named, t: Named, batch: dict[str, Any]) -> Tensor:
    x = flat(t, batch)
    click, conversion = (layers(p, name, x)[:, 0].sigmoid() for name in ("click", "conversion"))
    both = click * conversion
    return torch.stack([torch.logit(click), torch.logit(both)], 1)


def in_batch_loss(
    user: Tensor, item: Tensor, ids: Tensor, logs: Tensor, temperature: float
) -> Tensor:
    losses = []
    for i in range(len(user)):
        others = [j for j in range(len(user)) if j == i or ids[j] != ids[i]]
        scores = torch.stack([user[i] @ item[j] / temperature - logs[j] for j in others])
        losses.append(torch.logsumexp(scores, 0) - scores[others.index(i)])
    return torch.stack(losses).mean()


def two_tower(p: Named, t: Named, batch: dict[str, Any]) -> Tensor:
    history = torch.stack([mean_of(t["movie"], ids) for ids in lists(batch["seen"])])
    user = layers(p, "user", torch.cat([t["user"][batch["user"]], history], 1))
    tags = [root_mean_of(t["tags"], ids) for ids in lists(batch["tags"])]
    item = layers(p, "item", torch.cat([t["movie"][batch["movie"]], torch.stack(tags)], 1))
    user, item = user / user.norm(dim=1, keepdim=True), item / item.norm(dim=1, keepdim=True)
    return in_batch_loss(user, item, batch["movie"], batch["log_share"], 0.1)


def youtube_dnn(p: Named, t: Named, batch: dict[str, Any]) -> Tensor:
    history = torch.stack([mean_of(t["movie"], ids) for ids in lists(batch["seen"])])
    user = layers(p, "user", torch.cat([t["user"][batch["user"]], history], 1))
    item = t["movie.output"][batch["movie"]]
    return in_batch_loss(user, item, batch["movie"], torch.zeros(len(user)), 1.0)


def norm(p: Named, name: str, x: Tensor) -> Tensor:
    centered = x - x.mean(-1, keepdim=True)
    scaled = centered / (centered.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return scaled * p[f"{name}.weight"] + p[f"{name}.bias"]


def sasrec_states(p: Named, t: Named, ids: list[int]) -> Tensor:
    dim = t["movie"].shape[1]
    x = torch.stack([t["movie"][i] * dim**0.5 + p["places"][at] for at, i in enumerate(ids)])
    for block in range(2):
        name = f"blocks.{block}"
        projected = norm(p, f"{name}.before_attention", x) @ p[f"{name}.projections.weight"].T
        projected = (projected + p[f"{name}.projections.bias"]).view(len(ids), 3, 2, dim // 2)
        rows = []
        for at in range(len(ids)):
            parts = []
            for head in range(2):
                keys, values = projected[: at + 1, 1, head], projected[: at + 1, 2, head]
                shares = (keys @ projected[at, 0, head] / (dim // 2) ** 0.5).softmax(0)
                parts.append(shares @ values)
            rows.append(torch.cat(parts))
        x = x + torch.stack(rows)
        x = x + layers(p, f"{name}.layers", norm(p, f"{name}.before_layers", x))
    return norm(p, "last_norm", x)


def sasrec(p: Named, t: Named, batch: dict[str, Any]) -> Tensor:
    logits = []
    for example, ids in enumerate(lists(batch["seen"])):
        candidate = t["movie"][batch["movie"][example]]
        logits.append(sasrec_states(p, t, ids)[-1] @ candidate if ids else candidate.sum() * 0)
    return torch.stack(logits)


def sasrec_loss(p: Named, t: Named, batch: dict[str, Any]) -> Tensor:
    losses = []
    columns = (lists(batch[name]) for name in ("seen", "next", "unseen"))
    for ids, after, refused in zip(*columns, strict=True):
        states = sasrec_states(p, t, ids) if ids else ()
        for state, one, other in zip(states, after, refused, strict=True):
            losses.append(-functional.logsigmoid(state @ t["movie"][one]))
            losses.append(-functional.logsigmoid(-(state @ t["movie"][other])))
    return torch.stack(losses).sum() / (len(losses) // 2)
