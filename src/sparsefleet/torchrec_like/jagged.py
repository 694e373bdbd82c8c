"""Lightweight versions of TorchRec's jagged tensors, with the same methods.

In shapes, B is the number of examples, K the number of keys (features), N the number of values, and
D the row width.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from sparsefleet.errors import ShapeError
from sparsefleet.nn.step_rows import is_traced

__all__ = ["JaggedTensor", "KeyedJaggedTensor", "KeyedTensor"]


def _lengths_of(offsets: Tensor) -> Tensor:
    return offsets.diff()


def _own_strides(
    per_rank: Sequence[Sequence[int]] | Tensor | None, per_key: Sequence[int] | None
) -> list[int] | None:
    """Return the number of bags of each key, summed over all ranks.

    Return None if all keys have the same number of bags.
    """
    if per_rank is not None:
        return [int(sum(one)) for one in per_rank]
    return None if per_key is None else [int(one) for one in per_key]


def _offsets_of(lengths: Tensor) -> Tensor:
    return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])


class _Jagged:
    """Values with lengths or offsets; whichever is missing is computed on demand."""

    def __init__(
        self,
        values: Tensor,
        weights: Tensor | None,
        lengths: Tensor | None,
        offsets: Tensor | None,
    ) -> None:
        if lengths is None and offsets is None:
            raise ShapeError("a jagged tensor needs lengths or offsets, got neither")
        for name, column in (("lengths", lengths), ("offsets", offsets)):
            if column is not None and column.dim() != 1:
                raise ShapeError(f"{name} must be one-dimensional, got {list(column.shape)}")
        self._values, self._weights = values, weights
        self._lengths, self._offsets = lengths, offsets

    def values(self) -> Tensor:
        """Return all values, example by example: [N], or [N, D] for rows."""
        return self._values

    def weights_or_none(self) -> Tensor | None:
        """Return the weight of each value, float32[N], or None."""
        return self._weights

    def weights(self) -> Tensor:
        """Return the weight of each value, float32[N]. Raises ValueError if there are none."""
        if self._weights is None:
            raise ValueError("this jagged tensor has no weights: create it with weights=...")
        return self._weights

    def lengths(self) -> Tensor:
        """Return the number of values in each bag."""
        if self._lengths is None:
            assert self._offsets is not None
            self._lengths = _lengths_of(self._offsets)
        return self._lengths

    def offsets(self) -> Tensor:
        """Return the offset of each bag, followed by the end of the last bag."""
        if self._offsets is None:
            assert self._lengths is not None
            self._offsets = _offsets_of(self._lengths)
        return self._offsets

    def lengths_or_none(self) -> Tensor | None:
        return self._lengths

    def offsets_or_none(self) -> Tensor | None:
        return self._offsets

    def device(self) -> torch.device:
        return self._values.device


class JaggedTensor(_Jagged):
    """A list of values for each of B examples.

    >>> tensor = JaggedTensor(torch.tensor([1, 2, 3]), lengths=torch.tensor([1, 2]))
    >>> tensor.offsets().tolist(), [one.tolist() for one in tensor.to_dense()]
    ([0, 1, 3], [[1], [2, 3]])
    """

    def __init__(
        self,
        values: Tensor,
        weights: Tensor | None = None,
        lengths: Tensor | None = None,
        offsets: Tensor | None = None,
    ) -> None:
        super().__init__(values, weights, lengths, offsets)

    @staticmethod
    def from_dense(
        values: Sequence[Tensor], weights: Sequence[Tensor] | None = None
    ) -> JaggedTensor:
        """Return a jagged tensor with the given values for each example."""
        lengths = torch.tensor([len(one) for one in values])
        joined = None if weights is None else torch.cat(list(weights))
        return JaggedTensor(torch.cat(list(values)), joined, lengths)

    def to_dense(self) -> list[Tensor]:
        """Return the values of each example."""
        return list(torch.split(self._values, self.lengths().tolist()))

    def to_padded_dense(
        self, desired_length: int | None = None, padding_value: float = 0.0
    ) -> Tensor:
        """Return the first L values of each example, padded: [B, L, ...].

        L defaults to the length of the longest example.
        """
        lengths = self.lengths()
        longest = int(lengths.max()) if len(lengths) else 0
        length = longest if desired_length is None else desired_length
        shape = (len(lengths), length, *self._values.shape[1:])
        padded = self._values.new_full(shape, padding_value)
        mask = torch.arange(length) < lengths.unsqueeze(1)
        place = self.offsets()[:-1].unsqueeze(1) + torch.arange(length)
        padded[mask] = self._values[place[mask]]
        return padded

    def __repr__(self) -> str:
        return f"JaggedTensor({[one.tolist() for one in self.to_dense()]})"


class KeyedJaggedTensor(_Jagged):
    """The ids of K features for B examples, feature by feature.

    A model also accepts TorchRec's own class, which has the same methods.

    >>> ids = KeyedJaggedTensor.from_lengths_sync(
    ...     ["user", "ads"], torch.tensor([7, 8, 1, 2, 3]), torch.tensor([1, 1, 2, 1])
    ... )
    >>> ids.stride(), ids["ads"]
    (2, JaggedTensor([[1, 2], [3]]))
    """

    def __init__(
        self,
        keys: Sequence[str],
        values: Tensor,
        weights: Tensor | None = None,
        lengths: Tensor | None = None,
        offsets: Tensor | None = None,
        stride: int | None = None,
        stride_per_key_per_rank: Sequence[Sequence[int]] | Tensor | None = None,
        stride_per_key: Sequence[int] | None = None,
        inverse_indices: tuple[list[str], Tensor] | None = None,
    ) -> None:
        super().__init__(values, weights, lengths, offsets)
        self._keys = list(keys)
        num_bags = len(lengths) if lengths is not None else len(self.offsets()) - 1
        self._inverse = inverse_indices
        self._strides = _own_strides(stride_per_key_per_rank, stride_per_key)
        if self._strides is not None:
            if len(self._strides) != len(self._keys) or sum(self._strides) != num_bags:
                raise ShapeError(
                    f"{len(self._keys)} keys have strides {self._strides}, expected one stride per "
                    f"key with a sum of {num_bags}, the number of lengths"
                )
        elif self._keys and num_bags % len(self._keys):
            raise ShapeError(
                f"{len(self._keys)} keys need a multiple of {len(self._keys)} lengths, K * B, got "
                f"{num_bags}"
            )
        elif stride is not None and self._keys and stride * len(self._keys) != num_bags:
            raise ShapeError(
                f"{len(self._keys)} keys with stride {stride} need {stride * len(self._keys)} "
                f"lengths, K * B, got {num_bags}"
            )
        if stride is None and inverse_indices is not None:
            stride = inverse_indices[1].shape[-1]
        if stride is None and self._strides is not None:
            stride = max(self._strides, default=0)
        self._stride = stride if stride is not None else num_bags // max(len(self._keys), 1)
        self._parts: dict[str, JaggedTensor] = {}
        self._per_key: list[int] | None = None
        self._views: list[Tensor] | None = None

    @staticmethod
    def from_lengths_sync(
        keys: Sequence[str],
        values: Tensor,
        lengths: Tensor,
        weights: Tensor | None = None,
        stride: int | None = None,
    ) -> KeyedJaggedTensor:
        return KeyedJaggedTensor(keys, values, weights, lengths=lengths, stride=stride)

    @staticmethod
    def from_offsets_sync(
        keys: Sequence[str],
        values: Tensor,
        offsets: Tensor,
        weights: Tensor | None = None,
        stride: int | None = None,
    ) -> KeyedJaggedTensor:
        return KeyedJaggedTensor(keys, values, weights, offsets=offsets, stride=stride)

    @staticmethod
    def from_jt_dict(tensors: Mapping[str, JaggedTensor]) -> KeyedJaggedTensor:
        """Return one tensor with these features, which must have the same B."""
        if not is_traced():
            sizes = {key: len(one.lengths()) for key, one in tensors.items()}
            if len(set(sizes.values())) > 1:
                raise ShapeError(f"features must have the same number of examples, got {sizes}")
        return KeyedJaggedTensor._joined(list(tensors.items()))

    @staticmethod
    def _joined(
        tensors: Sequence[tuple[str, JaggedTensor]],
        strides: Sequence[int] | None = None,
        inverse_indices: tuple[list[str], Tensor] | None = None,
    ) -> KeyedJaggedTensor:
        parts = [part for _, part in tensors]
        weights = [one.weights_or_none() for one in parts]
        given = [one for one in weights if one is not None]
        if given and len(given) != len(parts):
            raise ShapeError(
                "some of the jagged tensors have weights and some do not: give all of them "
                "weights, or none"
            )
        joined = KeyedJaggedTensor(
            [key for key, _ in tensors],
            torch.cat([one.values() for one in parts]),
            torch.cat(given) if given else None,
            lengths=torch.cat([one.lengths() for one in parts]),
            stride_per_key=strides,
            inverse_indices=inverse_indices,
        )
        if is_traced():  # a graph cannot split a tensor at positions that depend on values
            joined._parts = dict(tensors)
        return joined

    @staticmethod
    def concat(tensors: Sequence[KeyedJaggedTensor]) -> KeyedJaggedTensor:
        """Concatenate the features of all tensors, which must have the same B and other keys."""
        parts = [(key, one[key]) for one in tensors for key in one._keys]
        keys = [key for key, _ in parts]
        if len(set(keys)) < len(keys):
            raise ShapeError(f"the tensors to concatenate must have different keys, got {keys}")
        if any(one.variable_stride_per_key() for one in tensors):
            raise ShapeError(
                "tensors whose features have batches of different sizes cannot be concatenated: "
                "create one tensor with stride_per_key=... and inverse_indices=..."
            )
        return KeyedJaggedTensor.from_jt_dict(dict(parts))

    def keys(self) -> list[str]:
        """Return the K feature names."""
        return self._keys

    def stride(self) -> int:
        """Return B."""
        return self._stride

    def stride_per_key(self) -> list[int]:
        """Return the number of bags of each feature: B, unless strides were given per feature."""
        return [self._stride] * len(self._keys) if self._strides is None else self._strides

    def variable_stride_per_key(self) -> bool:
        """Return whether features have batches of different sizes."""
        return self._strides is not None

    def inverse_indices(self) -> tuple[list[str], Tensor]:
        """Return the keys, and int64[K, B]: the index of each example's bag in each feature."""
        if self._inverse is None:
            raise ValueError(
                "this keyed jagged tensor has no inverse indices: create it with "
                "inverse_indices=..."
            )
        return self._inverse

    def inverse_indices_or_none(self) -> tuple[list[str], Tensor] | None:
        return self._inverse

    @property
    def _bags_before(self) -> list[int]:
        return [0, *itertools.accumulate(self.stride_per_key())]

    def length_per_key(self) -> list[int]:
        """Return the number of values of each feature."""
        offsets = self.offset_per_key()
        return [end - begin for begin, end in itertools.pairwise(offsets)]

    def offset_per_key(self) -> list[int]:
        """Return the offset of each feature's values, followed by the end of the last feature."""
        if self._per_key is None:
            first_bags = self._bags_before[:-1]
            self._per_key = [*self.offsets()[first_bags].tolist(), len(self._values)]
        return self._per_key

    def values_per_key(self) -> list[Tensor]:
        """Return the values of each feature as views; repeated calls return the same tensors."""
        if self._views is None:
            ends = self.offset_per_key()
            self._views = [self._values[begin:end] for begin, end in itertools.pairwise(ends)]
        return self._views

    def __getitem__(self, key: str) -> JaggedTensor:
        """Return one feature; its values are a view."""
        if key not in self._parts:
            if key not in self._keys:
                raise KeyError(f"no feature {key!r}; the keys are {self._keys}")
            at = self._keys.index(key)
            begin, end = self.offset_per_key()[at : at + 2]
            self._parts[key] = JaggedTensor(
                self._values[begin:end],
                None if self._weights is None else self._weights[begin:end],
                self.lengths()[self._bags_before[at] : self._bags_before[at + 1]],
            )
        return self._parts[key]

    def to_dict(self) -> dict[str, JaggedTensor]:
        """Return all features by name."""
        return {key: self[key] for key in self._keys}

    def split(self, segments: Sequence[int]) -> list[KeyedJaggedTensor]:
        """Split into tensors with the given numbers of features, in order."""
        found, at = [], 0
        for size in segments:
            found.append(self._with_keys(self._keys[at : at + size]))
            at += size
        return found

    def permute(self, indices: Sequence[int]) -> KeyedJaggedTensor:
        """Return the features in a different order."""
        return self._with_keys([self._keys[at] for at in indices])

    def to(self, device: torch.device, non_blocking: bool = False) -> KeyedJaggedTensor:
        """Return the tensor on the given device. Tables look up ids on the CPU."""
        weights = None if self._weights is None else self._weights.to(device)
        values = self._values.to(device, non_blocking=non_blocking)
        return KeyedJaggedTensor(
            self._keys,
            values,
            weights,
            self.lengths().to(device),
            stride_per_key=self._strides,
            inverse_indices=self._inverse,
        )

    def sync(self) -> KeyedJaggedTensor:
        """Return self, since everything is on the CPU; exists for compatibility."""
        return self

    def __repr__(self) -> str:
        return f"KeyedJaggedTensor({self.to_dict()})"

    def _with_keys(self, keys: list[str]) -> KeyedJaggedTensor:
        if not keys:
            return KeyedJaggedTensor([], self._values[:0], None, self.lengths()[:0])
        parts = [(key, self[key]) for key in keys]
        strides = None if self._strides is None else [len(one.lengths()) for _, one in parts]
        return KeyedJaggedTensor._joined(parts, strides, self._inverse)


class KeyedTensor:
    """One row per example and feature; the rows of an example are side by side in one tensor row.

    >>> rows = KeyedTensor(["a", "b"], [1, 2], torch.tensor([[1.0, 2.0, 3.0]]))
    >>> rows["b"]
    tensor([[2., 3.]])
    """

    def __init__(
        self, keys: Sequence[str], length_per_key: Sequence[int], values: Tensor, key_dim: int = 1
    ) -> None:
        self._keys, self._lengths = list(keys), list(length_per_key)
        self._values, self._key_dim = values, key_dim

    @staticmethod
    def from_tensor_list(
        keys: Sequence[str], tensors: Sequence[Tensor], key_dim: int = 1, cat_dim: int = 1
    ) -> KeyedTensor:
        lengths = [one.shape[key_dim] for one in tensors]
        return KeyedTensor(keys, lengths, torch.cat(list(tensors), dim=cat_dim), key_dim)

    def keys(self) -> list[str]:
        return self._keys

    def values(self) -> Tensor:
        """Return all rows, float32[B, sum of widths]."""
        return self._values

    def key_dim(self) -> int:
        return self._key_dim

    def length_per_key(self) -> list[int]:
        return self._lengths

    def offset_per_key(self) -> list[int]:
        """Return the column offset of each feature's row, followed by the end of the last row."""
        offsets = [0]
        for length in self._lengths:
            offsets.append(offsets[-1] + length)
        return offsets

    def __getitem__(self, key: str) -> Tensor:
        return self.to_dict()[key]

    def to_dict(self) -> dict[str, Tensor]:
        """Return the rows by feature, as views."""
        parts = torch.split(self._values, self._lengths, dim=self._key_dim)
        return dict(zip(self._keys, parts, strict=True))

    @staticmethod
    def regroup(tensors: Sequence[KeyedTensor], groups: Sequence[Sequence[str]]) -> list[Tensor]:
        """Return the concatenated rows of each group of features."""
        rows = {key: row for one in tensors for key, row in one.to_dict().items()}
        return [torch.cat([rows[key] for key in group], dim=1) for group in groups]
