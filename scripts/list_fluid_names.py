"""Lists the public names of Fluid 1.8.5, one per line.

Run it with a Python that has paddlepaddle 1.8.5: `python3.7 scripts/list_fluid_names.py > NAMES`;
`scripts/count_fluid_cases.py --names NAMES ...` then takes them over. A public name is

* a name in the `__all__` of a module, under the path of each module that lists it, or
* in a module without `__all__`, a class, function or object whose home it is; in a package without
  `__all__`, also those that it takes from its modules.

Names of the native module count under `paddle.fluid.core`, where programs find them. Left out are
imperative mode (`dygraph`, `hapi`), `slim`, generated protocol files, and modules that 1.8.5 itself
cannot import on Python 3.
"""

import importlib
import inspect
import pkgutil
import subprocess
import sys

LEFT_OUT = {"core_noavx", "dygraph", "hapi", "proto", "slim", "tests"}


def is_home_of(module, value):
    """Return whether a module defines a value, or is the package of the one that does."""
    home = str(getattr(value, "__module__", None))
    is_below = hasattr(module, "__path__") and home.startswith(module.__name__ + ".")
    return not inspect.ismodule(value) and (home == module.__name__ or is_below)


def names_of(path):
    """Return the public names of a module that can be imported."""
    module = importlib.import_module(path)
    declared = getattr(module, "__all__", None)
    found = [name for name in declared or vars(module) if not name.startswith("_")]
    if not declared:
        found = [name for name in found if is_home_of(module, vars(module)[name])]
    found = [name for name in found if hasattr(module, name)]
    return [f"{path}.{name}".replace(".core_avx.", ".core.") for name in found]


def names_alone(path):
    """Return the names of a module that can only be imported before others."""
    ended = subprocess.run([sys.executable, __file__, path], capture_output=True)
    if ended.returncode:
        reason = ended.stderr.decode().strip().splitlines()[-1]
        print(f"{path} is left out: {reason}", file=sys.stderr)
        return []
    (line,) = [one for one in ended.stdout.decode().splitlines() if one.startswith("names: ")]
    return line[len("names: ") :].split()


def main():
    if sys.argv[1:]:
        print("names: " + " ".join(names_of(sys.argv[1])))
        return
    import paddle

    found = set(names_of("paddle"))
    for module in pkgutil.walk_packages(paddle.__path__, "paddle.", onerror=lambda _: None):
        if LEFT_OUT & set(module.name.split(".")):
            continue
        try:
            found |= set(names_of(module.name))
        except Exception:
            found |= set(names_alone(module.name))
    print("\n".join(sorted(found)))


if __name__ == "__main__":
    main()
