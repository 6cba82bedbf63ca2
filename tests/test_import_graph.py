"""Imports go one way, each library has its owner, and the app's own process never loads torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MODEL_LIBRARIES = {"torch", "transformers", "accelerate", "gguf", "safetensors"}
FORBIDDEN = {
    "ckv_core": {"gradio", "plotly", "starlette", "sqlalchemy", "alembic", "storage", "ui", "app"},
    "storage": MODEL_LIBRARIES | {"gradio", "plotly", "starlette", "ui", "app"},
    "ui": MODEL_LIBRARIES | {"sqlalchemy", "alembic", "app"},
    "ui/charts": {"gradio", "starlette", "storage"},
    "app.py": MODEL_LIBRARIES | {"sqlalchemy", "alembic", "plotly"},
}
# Alembic runs these by path, inside a migration; they cannot be imported by name.
RUN_BY_PATH = ROOT / "storage" / "migrations"


def sources(package):
    path = ROOT / package
    return [path] if path.is_file() else sorted(path.rglob("*.py"))


def imported_roots(tree):
    """Top-level names that a module imports anywhere, lazily or by name included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield (node.module or "").partition(".")[0]
        elif isinstance(node, ast.Call) and node.args:
            called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            called = node.func.id if isinstance(node.func, ast.Name) else called
            name = node.args[0]
            if called in ("import_module", "__import__") and isinstance(name, ast.Constant):
                yield str(name.value).partition(".")[0]


def module_names(*packages):
    """Dotted names of all modules of these packages that can be imported by name."""
    for package in packages:
        for path in sources(package):
            if RUN_BY_PATH in path.parents:
                continue
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] in ("__init__", "__main__") else parts)


def run_python(code):
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    "code",
    [
        "import torch",
        "def f():\n    from torch.nn import Linear",
        "import importlib\nimportlib.import_module('torch.nn')",
        "__import__('torch')",
    ],
)
def test_the_walk_sees_every_way_to_import(code):
    assert "torch" in set(imported_roots(ast.parse(code)))


@pytest.mark.parametrize("package", FORBIDDEN)
def test_no_module_imports_what_its_package_must_not_know(package):
    found = sources(package)
    assert found, f"{package} has no modules"
    wrong = {
        str(path.relative_to(ROOT)): sorted(bad)
        for path in found
        if (bad := FORBIDDEN[package] & set(imported_roots(ast.parse(path.read_text("utf-8")))))
    }
    assert not wrong


def test_the_core_names_storage_in_one_place():
    """Studies are saved: `ckv_core/cli/study.py` loads `storage` by name when it needs it."""
    named = [
        str(path.relative_to(ROOT))
        for path in sources("ckv_core")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and str(node.value).startswith("storage.")
    ]
    assert named == ["ckv_core/cli/study.py"]


@pytest.mark.slow
def test_the_apps_process_never_loads_torch():
    names = sorted({"app", *module_names("ui", "storage")})
    assert "ui.build" in names
    code = "\n".join(f"import {name}" for name in names)
    done = run_python(f"{code}\nimport sys\nprint(sorted({MODEL_LIBRARIES!r} & set(sys.modules)))")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.slow
def test_the_core_imports_without_the_apps_libraries():
    names = sorted(set(module_names("ckv_core")))
    blocked = sorted(FORBIDDEN["ckv_core"] - {"app"})
    # None in sys.modules makes an import of that name fail, as if it were not installed.
    code = f"import sys\nsys.modules.update(dict.fromkeys({blocked!r}))\n"
    done = run_python(code + "\n".join(f"import {name}" for name in names))
    assert done.returncode == 0, done.stderr


def test_importing_the_core_package_costs_nothing():
    done = run_python("import sys, ckv_core\nprint({'torch', 'numpy'} & set(sys.modules))")
    assert done.stdout.strip() == "set()", done.stderr
