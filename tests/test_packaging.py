"""Checkout, wheel, sdist and editable install are one package; nothing depends on the links."""

import ast
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ["envs", "agents", "algos", "sandbox"]


def package_files(root: Path) -> set[str]:
    """Every file of the package, as a path from the checkout's root."""
    files = (path for path in (root / "stepcredit").rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix() for path in files if "__pycache__" not in path.parts}


def module_names() -> list[str]:
    """Every module of the checkout, but for `__main__`, which runs when imported."""
    paths = (Path(file).with_suffix("") for file in package_files(ROOT) if file.endswith(".py"))
    dotted = (".".join(path.parts).removesuffix(".__init__") for path in paths)
    return sorted(name for name in dotted if not name.endswith("__main__"))


def python(code: str, *args: object, executable: Path = Path(sys.executable), cwd: Path) -> str:
    """Run code in a new interpreter that sees no path but its own; give its output."""
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [str(executable), "-c", code, *map(str, args)]
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def pip(*args: object) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *args]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def bare_checkout(target: Path) -> Path:
    """What a build needs of the checkout, without the links and without earlier builds."""
    shutil.copytree(
        ROOT / "stepcredit", target / "stepcredit", ignore=shutil.ignore_patterns("__pycache__")
    )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, target)
    return target


def new_venv(target: Path) -> Path:
    """An interpreter without stepcredit that sees the installed third-party packages.

    A path file inside a directory that was itself added by a path file is not read, so an editable
    install of this checkout stays out of sight.
    """
    python("import sys, venv; venv.create(sys.argv[1], symlinks=True)", target, cwd=target.parent)
    site = sysconfig.get_path("purelib", "venv", vars={"base": str(target)})
    Path(site, "third_party.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return target / "bin" / "python"


IMPORT_ALL = """
import importlib, sys
from pathlib import Path
base, names = Path(sys.argv[1]).resolve(), sys.argv[2:]
for name in names:
    importlib.import_module(name)
files = [(name, getattr(module, "__file__", None)) for name, module in sys.modules.items()]
inside = [(n, f) for n, f in files if f and Path(f).resolve().is_relative_to(base / "stepcredit")]
assert sorted(n for n, f in inside) == sorted(names), (inside, names)
assert len({f for n, f in inside}) == len(names), "a file was imported under two names"
"""


BUILD = """
import sys
from setuptools import build_meta
getattr(build_meta, sys.argv[1])(sys.argv[2])
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a wheel, and in `sdist` an sdist and the wheel built from it."""
    folder = tmp_path_factory.mktemp("built")
    checkout = bare_checkout(tmp_path_factory.mktemp("checkout"))
    sdist = folder / "sdist"
    python(BUILD, "build_sdist", sdist, cwd=checkout)
    shutil.unpack_archive(next(sdist.glob("*.tar.gz")), sdist)
    python(BUILD, "build_wheel", sdist, cwd=next(sdist.glob("stepcredit-*/")))
    shutil.rmtree(checkout / "stepcredit.egg-info")
    python(BUILD, "build_wheel", folder, cwd=checkout)
    return folder


@pytest.mark.parametrize("source", ["", "sdist"])
def test_wheel_holds_every_file_once(built: Path, source: str) -> None:
    with zipfile.ZipFile(next((built / source).glob("*.whl"))) as wheel:
        names = [name for name in wheel.namelist() if ".dist-info/" not in name]
    assert sorted(names) == sorted(package_files(ROOT))


def test_sdist_holds_every_file_once(built: Path) -> None:
    with tarfile.open(next((built / "sdist").glob("*.tar.gz"))) as archive:
        names = [member.name.split("/", 1)[1] for member in archive if member.isfile()]
    own = [name for name in names if name.split("/")[0] in {"stepcredit", *FOLDERS}]
    assert sorted(own) == sorted(package_files(ROOT))


def test_installed_wheel_imports(built: Path, tmp_path: Path) -> None:
    executable = new_venv(tmp_path / "venv")
    wheel = next(built.glob("*.whl"))
    pip("--python", executable, "install", "--no-deps", "--no-compile", "--no-index", wheel)
    site = Path(sysconfig.get_path("purelib", "venv", vars={"base": str(tmp_path / "venv")}))
    assert not [name for name in FOLDERS if (site / name).exists()]
    python(IMPORT_ALL, site, *module_names(), executable=executable, cwd=tmp_path)
    command = [str(executable.with_name("stepcredit")), "--help"]
    assert "compare" in subprocess.check_output(command, cwd=tmp_path, text=True)


def test_editable_install_imports(tmp_path: Path) -> None:
    checkout = bare_checkout(tmp_path / "any-name")
    executable = new_venv(tmp_path / "venv")
    offline = ["--no-deps", "--no-compile", "--no-index", "--no-build-isolation"]
    pip("--python", executable, "install", *offline, "--editable", checkout)
    python(IMPORT_ALL, checkout, *module_names(), executable=executable, cwd=tmp_path)


def test_checkout_imports() -> None:
    python(IMPORT_ALL, ROOT, *module_names(), cwd=ROOT)


@pytest.mark.parametrize("name", FOLDERS)
def test_root_link(name: str) -> None:
    link = ROOT / name
    if not link.is_symlink():
        pytest.skip(f"{name} is not a link: this checkout was made without symbolic links")
    assert os.readlink(link) == f"stepcredit/{name}"
    assert (link / "__init__.py").is_file()


def test_import_is_light() -> None:
    loaded = python("import stepcredit, sys; print(*sys.modules)", cwd=ROOT).split()
    heavy = {"torch", "transformers", "pyarrow", "matplotlib", "scipy", "sympy", "pandas"}
    assert not heavy & set(loaded)


def test_import_registers_environments() -> None:
    code = "import stepcredit, gymnasium as g; print(*(i for i in g.registry if '/' in i))"
    assert "stepcredit/Doors-v0" in python(code, cwd=ROOT).split()


def test_every_import_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = [*project["dependencies"], *project["optional-dependencies"]["report"]]
    allowed = {normal(re.split(r"[><=;\[ ]", line)[0]) for line in declared}
    owners = packages_distributions()
    for file in package_files(ROOT):
        if file.endswith(".py"):
            for name in imported(ROOT / file) - sys.stdlib_module_names - {"stepcredit"}:
                distributions = {normal(owner) for owner in owners.get(name, [name])}
                assert distributions & allowed, f"{file} imports {name}: not in pyproject.toml"


def normal(distribution: str) -> str:
    return distribution.lower().replace("_", "-")


def imported(file: Path) -> set[str]:
    """The top-level names that a file imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return names
