"""Imports go one way, each library has its owner, and the app's own process never loads torch."""

import ast
import functools
import graphlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MODEL_LIBRARIES = {"torch", "transformers", "accelerate", "gguf", "safetensors"}
FORBIDDEN = {
    "ckv_core": {
        "gradio",
        "plotly",
        "starlette",
        "sqlalchemy",
        "alembic",
        "storage",
        "ui",
        "cli",
        "app",
    },
    "storage": MODEL_LIBRARIES | {"gradio", "plotly", "starlette", "ui", "cli", "app"},
    "ui": MODEL_LIBRARIES | {"sqlalchemy", "alembic", "cli", "app"},
    "cli": MODEL_LIBRARIES | {"gradio", "starlette", "plotly", "alembic", "app"},
    "app.py": MODEL_LIBRARIES | {"sqlalchemy", "alembic", "plotly"},
}
# From low to high: a module imports its own room or lower ones.
ROOMS = {
    "ckv_core": "errors base methods records models engine experiment kvpress worker cli",
    "ui": "limits looks tables charts users accounts settings services server components shell "
    "results compare several caches methods report run runs api build "
    "serve",
}
PURE = ("ui/tables", "ui/charts")  # values and figures, of results alone
IMPURE = {"gradio", "starlette", "sqlalchemy", "alembic", "storage"}
# Alembic runs these by path, inside a migration; they cannot be imported by name.
RUN_BY_PATH = ROOT / "storage" / "migrations"


def sources(package):
    path = ROOT / package
    return [path] if path.is_file() else sorted(path.rglob("*.py"))


def modules(package):
    """Path by dotted name, of all modules of a package."""
    for path in sources(package):
        parts = path.relative_to(ROOT).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


# Kernels, imported on CUDA alone: Triton comes with PyTorch for it.
OF_TRITON = {
    "ckv_core.engine.cache.join_kernel",
    "ckv_core.engine.cache.split_kernel",
    "ckv_core.models.kernels",
}


def importing(*packages):
    """Code that imports all modules of these that can be imported by name."""
    found = [each for package in packages for each in modules(package)]
    names = [name for name, path in found if RUN_BY_PATH not in path.parents]
    names = [name for name in names if name not in OF_TRITON]
    assert len(names) > 20
    return "".join(f"import {name.removesuffix('.__main__')}\n" for name in names)


@functools.cache
def imported_modules(path, *, lazily=True):
    """Modules of `MODULES` and other packages that a file names, wherever or on its own level."""
    tree, found = ast.parse(path.read_text("utf-8")), set()
    for node in ast.walk(tree) if lazily else tree.body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {name if name in MODULES else str(node.module) for name in names}
    return found


MODULES = {name: path for package in ROOMS for name, path in modules(package)}


def all_behind(name, *, seen):
    """What importing a module loads, without what functions import when they are called."""
    for other in imported_modules(MODULES[name], lazily=False):
        if other not in seen:
            seen.add(other)
            if other in MODULES:
                all_behind(other, seen=seen)
    return seen


def run_python(code):
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("package", FORBIDDEN)
def test_no_module_imports_what_its_package_must_not_know(package):
    found = sources(package)
    assert found, f"{package} has no modules"
    wrong = {
        str(path.relative_to(ROOT)): sorted(bad)
        for path in found
        if (bad := FORBIDDEN[package] & {name.split(".")[0] for name in imported_modules(path)})
    }
    assert not wrong


def test_only_these_modules_import_by_a_text():
    found = [path for package in FORBIDDEN for path in sources(package)]
    by_text = {
        path.name for path in found if re.search(r"import_module\(|__import__", path.read_text())
    }
    assert by_text == {"lazy_torch.py", "process.py"}


@pytest.mark.parametrize("package", ROOMS)
def test_rooms_import_only_lower_ones(package):
    order = ROOMS[package].split()
    assert {name.split(".")[1] for name in MODULES if name.startswith(f"{package}.")} == (
        {*order, "__main__"} if package == "ckv_core" else {*order}
    )
    wrong = [
        f"{name} -> {other}"
        for name, path in MODULES.items()
        for other in imported_modules(path)
        if name.split(".")[1:2] and name.startswith(package) and other.startswith(f"{package}.")
        if name.split(".")[1] in order
        if order.index(other.split(".")[1]) > order.index(name.split(".")[1])
    ]
    assert not wrong


def test_one_module_alone_compares_a_device_with_cuda():
    compares = re.compile(r"type [=!]= .cuda|\.is_cuda\b")
    found = [path for path in sources("ckv_core") if compares.search(path.read_text("utf-8"))]
    assert found == [ROOT / "ckv_core" / "base" / "devices.py"]


def test_no_files_import_one_another_in_a_circle():
    graph = {name: imported_modules(path) - {name} for name, path in MODULES.items()}
    list(graphlib.TopologicalSorter(graph).static_order())  # says which, if there is one


@pytest.mark.parametrize("package", PURE)
def test_tables_and_figures_need_no_page_and_no_database(package):
    for name, _ in modules(package):
        behind = all_behind(name, seen=set())
        packages = {other.partition(".")[0] for other in behind}
        assert not packages & (IMPURE | MODEL_LIBRARIES), name
        assert not any(other.startswith("ui.services") for other in behind), name


@pytest.mark.slow
def test_the_apps_process_never_loads_torch():
    code = importing("app.py", "ui", "storage")
    done = run_python(f"{code}import sys\nprint(sorted({MODEL_LIBRARIES!r} & set(sys.modules)))")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.slow
def test_the_core_imports_without_the_apps_libraries():
    blocked = sorted(FORBIDDEN["ckv_core"] - {"app"})
    # None in sys.modules makes an import of that name fail, as if it were not installed.
    code = f"import sys\nsys.modules.update(dict.fromkeys({blocked!r}))\n"
    done = run_python(code + importing("ckv_core"))
    assert done.returncode == 0, done.stderr


def test_the_engine_imports_beside_torch_and_transformers_alone():
    """As in the image of a GPU machine, to which little can be added."""
    lacking = ("platformdirs", "rapidfuzz", "pydantic", "gguf")
    code = f"import sys\nsys.modules.update(dict.fromkeys({lacking!r}))\n"
    done = run_python(code + "import ckv_core.engine.compare, ckv_core.models.loading")
    assert done.returncode == 0, done.stderr


def test_what_a_new_process_imports_costs_nothing():
    """A spawned worker imports the main module anew."""
    done = run_python(
        "import sys, ckv_core, app, cli.main\n"
        "print({'torch', 'numpy', 'gradio', 'ui'} & set(sys.modules))"
    )
    assert done.stdout.strip() == "set()", done.stderr
