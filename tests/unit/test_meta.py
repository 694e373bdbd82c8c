"""Rules of the project that no other test checks."""

from __future__ import annotations

import ast
import dataclasses
import doctest
import importlib
import inspect
import pkgutil
import pydoc
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.server_process import ServerProcess

import sparsefleet

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "sparsefleet"

# Imports point to the right or down. Entry points may import anything.
ENTRY_POINTS = "__init__ __main__ as_paddle distributed ray cli"
ROOMS = """
    planning fluid zoo torchrec_like
    train launch
    engine embed
    fleet modes
    serving collective
    nn optim
    store server
    checkpoint data metrics monitor
    _lazy job_id job_key endpoint field_checks errors _core
"""
MODULE = r"sparsefleet(\.\w+){2,}"
LEVEL_OF = dict.fromkeys(ENTRY_POINTS.split(), 0)
LEVEL_OF |= {name: level for level, name in enumerate(ROOMS.split(), 1)}

MAX_LINES = 600
MAX_COLUMNS = 120
MAX_PUBLIC_NAMES = 20
MAX_ARGUMENTS = 5
# Programs pass these arguments by position, as in Fluid.
AS_IN_FLUID = {
    "sparsefleet.fluid.dygraph.nn.BatchNorm",
    "sparsefleet.fluid.dygraph.nn.BilinearTensorProduct",
    "sparsefleet.fluid.dygraph.nn.Conv2D",
    "sparsefleet.fluid.dygraph.nn.Conv2DTranspose",
    "sparsefleet.fluid.dygraph.nn.Conv3D",
    "sparsefleet.fluid.dygraph.nn.Conv3DTranspose",
    "sparsefleet.fluid.dygraph.nn.Embedding",
    "sparsefleet.fluid.dygraph.nn.GRUUnit",
    "sparsefleet.fluid.dygraph.nn.GroupNorm",
    "sparsefleet.fluid.dygraph.nn.LayerNorm",
    "sparsefleet.fluid.dygraph.nn.Linear",
    "sparsefleet.fluid.dygraph.nn.NCE",
    "sparsefleet.fluid.dygraph.nn.Pool2D",
    "sparsefleet.fluid.dygraph.schedules.CosineDecay",
    "sparsefleet.fluid.dygraph.schedules.NoamDecay",
    "sparsefleet.fluid.evaluator.DetectionMAP",
    "sparsefleet.fluid.operators.cells.GRUCell",
    "sparsefleet.fluid.operators.cells.LSTMCell",
    "sparsefleet.fluid.operators.decoding.BeamSearchDecoder",
    "sparsefleet.fluid.operators.state_decoder.BeamSearchDecoder",
    "sparsefleet.fluid.operators.state_decoder.InitState",
    "sparsefleet.fluid.operators.cells.BasicGRUUnit",
    "sparsefleet.fluid.operators.cells.BasicLSTMUnit",
    "sparsefleet.fluid.optimizer.kinds.DGCMomentumOptimizer",
}
# The same, as in TorchRec.
AS_IN_TORCHREC = {
    "sparsefleet.torchrec_like.collections.EmbeddingBagConfig",
    "sparsefleet.torchrec_like.collections.EmbeddingConfig",
    "sparsefleet.torchrec_like.dlrm.DLRM_DCN",
    "sparsefleet.torchrec_like.jagged.KeyedJaggedTensor",
}
MAX_SETTINGS = 14  # arguments of an embedding, including those of its table


def python_files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def all_modules() -> list[str]:
    return [name for path in python_files() if not (name := module_name(path)).endswith("__main__")]


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imported_rooms(path: Path) -> Iterator[str]:
    """Yield the rooms that a file imports, anywhere, or whose modules it names as strings."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and re.fullmatch(MODULE, str(node.value)):
            yield node.value.split(".")[1]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import in line {node.lineno}"
            if node.module == "sparsefleet":
                yield from (name.name for name in node.names if name.name in LEVEL_OF)
            elif (node.module or "").startswith("sparsefleet."):
                yield str(node.module).split(".")[1]
        elif isinstance(node, ast.Import):
            for name in node.names:
                if name.name.startswith("sparsefleet."):
                    yield name.name.split(".")[1]


def test_imports_go_down_the_list_of_rooms() -> None:
    wrong = []
    for path in python_files():
        own = room_of(path)
        assert own in LEVEL_OF, f"{own} is in no room: put it into ROOMS where it belongs"
        for other in imported_rooms(path):
            if other != own and LEVEL_OF[other] <= LEVEL_OF[own] != 0:
                wrong.append(f"{module_name(path)} imports {other}, which is not below {own}")
    assert not wrong


def test_public_names_are_listed_in_order_and_exist() -> None:
    for name in all_modules():
        module = importlib.import_module(name)
        names = getattr(module, "__all__", None)
        if names is None:
            assert module.__file__ is not None
            assert not module.__file__.endswith("__init__.py"), f"{name} has no __all__"
            continue
        assert list(names) == sorted(set(names)), name
        for public in names:
            assert hasattr(module, public), f"{name}.{public}"


def test_init_files_hold_no_logic() -> None:
    imports = (ast.Import, ast.ImportFrom)
    for path in PACKAGE.rglob("__init__.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            where = f"{path}:{node.lineno}"
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                assert all(isinstance(inner, imports) for inner in node.body), where
            else:
                assert isinstance(node, (*imports, ast.Assign, ast.Expr)), where


def test_names_that_are_loaded_late_are_listed_and_have_help() -> None:
    assert dir(sparsefleet) == sparsefleet.__all__
    assert len(sparsefleet.__all__) <= MAX_PUBLIC_NAMES, "import it from its room instead"
    shown = pydoc.render_doc(sparsefleet, renderer=pydoc.plaintext)
    for name in ("Trainer", "Predictor"):
        assert f"    class {name}(" in shown


def public_classes() -> dict[str, type]:
    found = {}
    for name in all_modules():
        module = importlib.import_module(name)
        for public in getattr(module, "__all__", ()):
            value = getattr(module, public)
            if isinstance(value, type) and value.__module__.startswith("sparsefleet"):
                found[f"{value.__module__}.{value.__qualname__}"] = value
    return found


def test_constructors_take_five_arguments_or_a_config() -> None:
    wrong = [why for name, kind in public_classes().items() if (why := too_many(name, kind))]
    assert not wrong


def too_many(name: str, kind: type) -> str:
    """Return what is wrong with the constructor of a class; empty if nothing is."""
    if issubclass(kind, BaseException) or not inspect.isfunction(kind.__init__):
        return ""
    if name in AS_IN_FLUID | AS_IN_TORCHREC:
        return ""
    parameters = list(inspect.signature(kind.__init__).parameters.values())[1:]
    if dataclasses.is_dataclass(kind) and all(p.kind is p.KEYWORD_ONLY for p in parameters):
        return ""  # it is itself a config
    positional = sum(p.kind is not p.KEYWORD_ONLY for p in parameters)
    if positional > MAX_ARGUMENTS:
        return f"{name} takes {positional} positional arguments: make a config"
    if len(parameters) > MAX_SETTINGS:
        return f"{name} takes {len(parameters)} arguments: make a config"
    return ""


@pytest.mark.parametrize(
    "name", [module_name(path) for path in python_files() if ">>> " in path.read_text("utf-8")]
)
def test_examples_in_docstrings_run(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted
    assert result.failed == 0


def source_files() -> list[Path]:
    patterns = ("*.py", "*.h", "*.cc", "*.sh")
    folders = ("src", "core", "bindings", "tests", "examples", "bench", "scripts")
    return sorted(
        path
        for folder in folders
        for pattern in patterns
        for path in (ROOT / folder).rglob(pattern)
    )


def test_no_file_is_longer_than_people_read() -> None:
    long = {}
    for path in source_files():
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > MAX_LINES:
            long[str(path.relative_to(ROOT))] = lines
    assert not long


def test_every_environment_variable_is_documented_and_no_other() -> None:
    used: set[str] = set()
    for path in python_files():
        text = path.read_text(encoding="utf-8")
        used |= set(re.findall(r"\bSPARSEFLEET_[A-Z0-9_]+\b", text))
        used |= set(re.findall(r"environ(?:\.get\(|\.integer\(|\[)\s*[\"'](\w+)[\"']", text))
        used |= set(re.findall(r"getenv\(\s*[\"'](\w+)[\"']", text))
    for folder in ("core", "bindings"):
        for path in (ROOT / folder).rglob("*.cc"):
            used |= set(re.findall(r"getenv\(\s*\"(\w+)\"", path.read_text(encoding="utf-8")))
    page = (ROOT / "docs" / "env.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^(?:\*|\|) `(\w+)`(?::| \|)", page, re.MULTILINE))
    assert used == {name for name in documented if not name.startswith("GLOO_")}


def test_links_between_documents_lead_somewhere() -> None:
    broken = []
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if "://" not in target and not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert not broken


def test_the_batch_in_architecture_md_is_followed_through_names_that_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    pairs = re.findall(r"`([\w/]+\.py)`:\s+`([\w.]+)`", page)
    assert len(pairs) > 20
    for path, name in pairs:
        owner, _, method = name.rpartition(".")
        tree = ast.parse((PACKAGE / path).read_text(encoding="utf-8"))
        for part in filter(None, (owner, method)):
            named = [node for node in ast.walk(tree) if getattr(node, "name", "") == part]
            assert named, f"{path}: {name}"
            tree = named[0]


def test_markdown_lines_have_at_most_120_columns() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    wide = [
        f"{page.relative_to(ROOT)}:{number}"
        for page in pages
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > MAX_COLUMNS
    ]
    assert not wide, "wrap the text, or make a list of a table with long cells"


def readme_blocks() -> list[str]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_readme_has_code() -> None:
    assert readme_blocks()


@pytest.mark.parametrize("index", range(len(readme_blocks())))
def test_readme_code_runs(
    index: int,
    start_server: Callable[..., ServerProcess],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    block = readme_blocks()[index]
    monkeypatch.chdir(tmp_path)
    for number, endpoint in enumerate(sorted(set(re.findall(r"127\.0\.0\.1:91\d\d", block)))):
        count = len(set(re.findall(r"127\.0\.0\.1:91\d\d", block)))
        server = start_server("--index", str(number), "--num-servers", str(count))
        block = block.replace(endpoint, server.wait_ready())
    exec(compile(block, f"README.md, block {index}", "exec"), {"__name__": "readme"})


def test_stub_of_the_extension_is_the_one_of_this_build() -> None:
    core = importlib.import_module("sparsefleet._core")
    assert core.__file__ is not None
    stub = ast.parse((Path(core.__file__).parent / "_core.pyi").read_text(encoding="utf-8"))
    assert declared_names(stub.body) == public_names(core)
    for node in stub.body:
        if isinstance(node, ast.ClassDef):
            assert declared_names(node.body) == public_names(getattr(core, node.name)), node.name


def public_names(owner: object) -> set[str]:
    return {name for name in vars(owner) if not name.startswith("_")}


def declared_names(body: list[ast.stmt]) -> set[str]:
    names: set[str] = set()
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return {name for name in names if not name.startswith("_")}


def test_every_module_can_be_imported() -> None:
    for module in pkgutil.walk_packages(sparsefleet.__path__, "sparsefleet."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def test_version_is_the_same_everywhere() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{sparsefleet.__version__}"' in text
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## {sparsefleet.__version__}" in changes
