# SPDX-License-Identifier: Apache-2.0
"""Makes tiny models, texts, images and metrics for training scripts: python script_data.py FOLDER."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import diffusers
import numpy
import tokenizers
import transformers
from client_data import CONDITIONED_UNET, UNET
from PIL import Image
from tokenizers import models, pre_tokenizers, processors

SYLLABLES = ("ba", "ko", "li", "mu", "ne", "ro", "si", "ta", "vu")
WORDS = [first + second for first in SYLLABLES for second in SYLLABLES[:5]]
METRIC = """
import datasets
import evaluate


class Own(evaluate.Metric):
    def _info(self):
        value = {value}
        features = datasets.Features({{"predictions": value, "references": value}})
        return evaluate.MetricInfo(description="", citation="", inputs_description="", features=features)

    def _compute(self, predictions, references, **options):
        equal = sum(one == other for one, other in zip(predictions, references)) / len(references)
        return {{**dict.fromkeys({names}, equal), "count": float(len(references))}}
"""
# The metrics of the scripts, with the type of their values. That of token classification reads four numbers.
VALUES = {
    "accuracy": 'datasets.Value("int32")',
    "seqeval": 'datasets.Sequence(datasets.Value("string"))',
}
NAMES = [f"overall_{name}" for name in ("precision", "recall", "f1", "accuracy")]


def make_tokenizer(folder: Path, template: str, **special: str) -> int:
    """Saves a tokenizer of whole words, and returns its number of words."""
    words = {word: index for index, word in enumerate([*special.values(), *WORDS])}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(words, unk_token=special["unk_token"]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    single, pair = template.split("|")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=[(word, words[word]) for word in special.values()]
    )
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=64, **special)
    made.save_pretrained(folder)
    return len(words)


def make_language_models(folder: Path) -> None:
    transformers.set_seed(1)
    words = make_tokenizer(
        folder / "bert", "[CLS] $A [SEP]|[CLS] $A [SEP] $B:1 [SEP]:1",
        pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
    )  # fmt: skip
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 37}
    bert = transformers.BertConfig(vocab_size=words, max_position_embeddings=64, **sizes)
    transformers.BertForMaskedLM(bert).save_pretrained(folder / "bert")


def make_stable_diffusion(folder: Path) -> None:
    transformers.set_seed(1)
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    ends = ["<|startoftext|>", "<|endoftext|>"]
    letters = [*letters, *(letter + "</w>" for letter in letters), *ends]
    files = folder / "clip"
    files.mkdir()
    (files / "vocab.json").write_text(json.dumps({letter: index for index, letter in enumerate(letters)}))
    (files / "merges.txt").write_text("#version: 0.2\n")
    text = transformers.CLIPTextConfig(
        vocab_size=len(letters), hidden_size=32, intermediate_size=37, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=16, bos_token_id=len(letters) - 2, eos_token_id=len(letters) - 1, pad_token_id=1,
    )  # fmt: skip
    diffusers.StableDiffusionPipeline(
        vae=diffusers.AutoencoderKL(
            block_out_channels=(8, 8),
            down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2,
            latent_channels=4,
            norm_num_groups=4,
            sample_size=16,
        ),
        text_encoder=transformers.CLIPTextModel(text),
        tokenizer=transformers.CLIPTokenizer(
            str(files / "vocab.json"), str(files / "merges.txt"), model_max_length=16
        ),
        unet=diffusers.UNet2DConditionModel(cross_attention_dim=32, **CONDITIONED_UNET),
        scheduler=diffusers.DDPMScheduler(num_train_timesteps=100, beta_schedule="scaled_linear"),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    ).save_pretrained(folder / "sd")
    diffusers.UNet2DModel(sample_size=16, **UNET).save_config(folder / "ddpm")


def save_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def save_images(folder: Path, count: int) -> list[str]:
    folder.mkdir()
    names = [f"{index}.png" for index in range(count)]
    for index, name in enumerate(names):
        values = numpy.random.RandomState(index).rand(16, 16, 3) * 255
        Image.fromarray(values.astype("uint8")).save(folder / name)
    return names


def make_data(folder: Path) -> None:
    chosen = random.Random(3)

    def sentence(least: int, most: int) -> str:
        return " ".join(chosen.choices(WORDS, k=chosen.randint(least, most)))

    for split, count in (("train", 50), ("val", 21)):
        pairs = [
            {"sentence1": sentence(3, 9) + " vune" * (row % 2), "sentence2": sentence(2, 5), "label": row % 2}
            for row in range(count)
        ]
        save_rows(folder / f"glue_{split}.json", pairs)
        tokens = [sentence(8, 14).split() for _ in range(count)]
        save_rows(
            folder / f"ner_{split}.json",
            [{"tokens": words, "ner_tags": ["B-X" if word[0] in "bk" else "O" for word in words]} for words in tokens],
        )
    names = save_images(folder / "captioned", 18)
    save_rows(folder / "captioned" / "metadata.jsonl", [{"file_name": name, "text": sentence(4, 4)} for name in names])
    save_images(folder / "instances", 6)
    for name, value in VALUES.items():
        metric = folder / "metrics" / name
        metric.mkdir(parents=True)
        (metric / f"{name}.py").write_text(METRIC.format(value=value, names=NAMES))


if __name__ == "__main__":
    make_data(Path(sys.argv[1]))
    make_language_models(Path(sys.argv[1]))
    make_stable_diffusion(Path(sys.argv[1]))
