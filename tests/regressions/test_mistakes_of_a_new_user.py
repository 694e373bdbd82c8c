"""Mistakes that a new user makes, and the errors and displays that point out the way."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sparsefleet import Predictor, Trainer, TrainerConfig, fluid
from sparsefleet.cli.main import main as sparsefleet_command
from sparsefleet.errors import CheckpointError, ConfigError, FeedError
from sparsefleet.fluid.paddle.as_paddle import main as as_paddle
from sparsefleet.nn import SparseEmbedding, SparseEmbeddingBag
from sparsefleet.serving.example_files import read_examples
from sparsefleet.serving.export import save_inference_model
from sparsefleet.train import Callback, EarlyStopping, SaveBest
from sparsefleet.train.progress import Snapshot


class Clicks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ads = SparseEmbeddingBag("ads", 2)
        self.head = nn.Linear(2, 1)

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.head(self.ads(ids)).squeeze(1)
        return logits


def trainer() -> Trainer:
    model = Clicks()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Trainer(model, nn.BCEWithLogitsLoss(), optimizer, config=TrainerConfig(quiet=True))


def batches(count: int = 3) -> list[tuple[Tensor, Tensor]]:
    return [(torch.arange(8).view(4, 2), torch.ones(4))] * count


@pytest.mark.parametrize("module", [SparseEmbedding, SparseEmbeddingBag])
def test_a_number_of_rows_in_place_of_the_name_is_explained(module: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match=r"name, a string, got 1000; unlike nn.Embedding"):
        module(1000, 8)


def test_labels_of_another_type_are_not_blamed_on_the_shape() -> None:
    with trainer() as training, pytest.raises(RuntimeError) as failure:
        training.fit([(torch.arange(8).view(4, 2), torch.ones(4, dtype=torch.int64))])
    notes = " ".join(getattr(failure.value, "__notes__", []))
    assert "convert: labels.float()" in notes
    assert "Slot(" not in notes


def test_an_input_that_forward_does_not_take_is_shown_with_what_it_takes() -> None:
    with trainer() as training, pytest.raises(TypeError) as failure:
        training.fit([({"user": torch.arange(4), "age": torch.ones(4)}, torch.ones(4))])
    notes = " ".join(getattr(failure.value, "__notes__", []))
    assert "the batch has the inputs user, age, but Clicks.forward takes ids" in notes


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_generator_for_validation_is_not_called_data(epochs: int) -> None:
    model = Clicks()
    with (
        Trainer(
            model,
            nn.BCEWithLogitsLoss(),
            torch.optim.SGD(model.parameters(), lr=0.1),
            config=TrainerConfig(quiet=True, validate_every_steps=1),
        ) as training,
        pytest.raises(ConfigError, match="^validation is a generator, .* but it is read again"),
    ):
        training.fit(batches(), epochs=epochs, validation=(batch for batch in batches()))


def test_an_evaluation_without_examples_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with trainer() as training:
        assert math.isnan(training.evaluate([])["loss"])
    assert "evaluated no examples" in caplog.text


def test_an_epoch_that_resumes_at_its_end_shows_no_loss_of_nan() -> None:
    assert "nan" not in str(Snapshot(epoch=2, epochs=6, batches=0))
    assert "loss nan" in str(Snapshot(epoch=2, epochs=6, batches=1, examples=4))


def test_an_export_and_a_checkpoint_are_told_apart(tmp_path: Path) -> None:
    export, checkpoint = tmp_path / "export", tmp_path / "checkpoint"
    save_inference_model(export, Clicks(), torch.arange(8).view(4, 2), onnx=False)
    with trainer() as training:
        training.fit(batches())
        training.save(checkpoint)
        with pytest.raises(CheckpointError, match="expected a checkpoint, found an exported model"):
            training.load(export)
    with pytest.raises(CheckpointError, match="it describes a checkpoint: export the model with"):
        Predictor(checkpoint)


def test_float_labels_of_classes_are_not_blamed_on_the_shape() -> None:
    model = nn.Sequential(SparseEmbeddingBag("ads", 2), nn.Linear(2, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = TrainerConfig(quiet=True)
    with (
        Trainer(model, nn.CrossEntropyLoss(), optimizer, config=config) as training,
        pytest.raises(RuntimeError) as raised,
    ):
        training.fit(batches())
    notes = "\n".join(raised.value.__notes__)
    assert "labels.long()" in notes
    assert "squeeze" not in notes


def test_strings_as_ids_are_pointed_to_hashing() -> None:
    with trainer() as training, pytest.raises(ConfigError, match="sparsefleet.data.hash_ids"):
        training.fit([(np.array([["shoes", "hats"]]), np.ones(1, np.float32))])


def test_an_unsupported_setting_of_an_optimizer_is_explained_without_a_list_that_is_not_there() -> (
    None
):
    model = Clicks()
    optimizer = torch.optim.Adam(model.parameters(), amsgrad=True)
    with pytest.raises(ConfigError, match="amsgrad=False, got True. Change the model's optimizer"):
        Trainer(model, nn.BCEWithLogitsLoss(), optimizer)


@pytest.mark.parametrize("factor", [None, "fast", math.nan, -1.0])
def test_a_schedule_that_returns_no_factor_is_named_with_its_step(factor: Any) -> None:
    model = Clicks()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        pytest.raises(ConfigError, match="the schedule must return a number >= 0.* for step 0"),
        Trainer(model, nn.BCEWithLogitsLoss(), optimizer, schedule=lambda _: factor) as training,
    ):
        training.fit(batches())


def test_a_single_callback_is_asked_for_as_a_list() -> None:
    model = Clicks()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ConfigError, match=r"got one EarlyStopping: pass callbacks=\[...\]"):
        Trainer(model, nn.BCEWithLogitsLoss(), optimizer, callbacks=EarlyStopping())  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [EarlyStopping, lambda name: SaveBest("best", name)])
@pytest.mark.parametrize(("monitor", "validation"), [("acu", batches()), ("auc", None)])
def test_a_metric_that_fit_never_computes_is_refused_before_training(
    kind: Callable[[str], Callback], monitor: str, validation: Any
) -> None:
    model, taken = Clicks(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = TrainerConfig(quiet=True)
    callbacks = [kind(monitor)]

    def data() -> Iterator[tuple[Tensor, Tensor]]:
        taken.append("an epoch")
        yield from batches()

    loss = nn.BCEWithLogitsLoss()
    with (
        Trainer(model, loss, optimizer, config=config, callbacks=callbacks) as training,
        pytest.raises(ConfigError, match=f"monitor='{monitor}'.*: no such metric; available: "),
    ):
        training.fit(data, validation=validation)
    assert not taken


def test_a_misspelt_hook_is_refused_because_it_would_never_be_called() -> None:
    class Printing(Callback):
        def on_epoch_ended(self, trainer: Trainer, epoch: object) -> None:
            print(trainer, epoch)

    model = Clicks()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ConfigError, match="on_epoch_ended is not a hook.*'on_epoch_end'"):
        Trainer(model, nn.BCEWithLogitsLoss(), optimizer, callbacks=[Printing()])


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("lunch train.py", "'launch'"),
        ("launch --workrs 2 train.py", "'--workers'"),
        ("manifest slurm --severs=2 train.py", "'--servers'"),
        ("manifest slrum train.py", "'slurm'"),
        ("serve export --prot 8000", "'--port'"),
        ("checkpoint shhow model", "'show'"),
    ],
)
def test_a_misspelt_command_or_option_is_answered_with_the_right_one(
    words: str, wanted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exited:
        sparsefleet_command(words.split())
    assert exited.value.code == 2
    assert f"did you mean {wanted}?" in capsys.readouterr().err


def test_strings_for_a_model_of_ids_are_explained_in_files_too(tmp_path: Path) -> None:
    save_inference_model(tmp_path, Clicks(), {"ids": torch.arange(8).view(4, 2)}, onnx=False)
    (tmp_path / "day.csv").write_text("ids\nshoes hats\n")
    schema = Predictor(tmp_path).schema
    with pytest.raises(FeedError, match="strings need a model that was exported with features="):
        list(read_examples(tmp_path / "day.csv", schema, 8))


def test_a_save_does_not_destroy_an_exported_model(tmp_path: Path) -> None:
    save_inference_model(tmp_path, Clicks(), torch.arange(8).view(4, 2), onnx=False)
    before = Predictor(tmp_path).predict(torch.arange(8).view(4, 2))
    files = sorted(tmp_path.iterdir())
    with trainer() as training:
        training.fit(batches())
        with pytest.raises(CheckpointError, match="exported model.*save to a different directory"):
            training.save(tmp_path)
    assert sorted(tmp_path.iterdir()) == files
    assert (Predictor(tmp_path).predict(torch.arange(8).view(4, 2)) == before).all()


@pytest.mark.parametrize("text", ['{"name": "web app"}', '{"format": "web app"}', '["web app"]'])
def test_a_save_does_not_replace_a_manifest_of_something_else(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with trainer() as training:
        training.fit(batches())
        with pytest.raises(CheckpointError, match="it describes something else"):
            training.save(tmp_path)
    assert (tmp_path / "manifest.json").read_text() == text


def test_ids_without_a_last_axis_are_pointed_to_the_layer_that_takes_them() -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        ids = fluid.data("ids", [None, 3], "int64")
        with pytest.raises(ValueError, match=r"size 1, got 3; fluid\.embedding takes"):
            fluid.layers.embedding(ids, size=[100, 8])


def test_as_paddle_calls_itself_by_the_name_it_was_called_by(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert as_paddle(["nowhere.py"]) == 2
    assert "python -m sparsefleet.as_paddle: error: script" in capsys.readouterr().err
