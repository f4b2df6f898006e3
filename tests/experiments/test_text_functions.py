"""A text model that a function of the user's makes."""

from pathlib import Path

import pytest
from transformers import BertConfig, BertForSequenceClassification

from fedsim.models import TEXT_MODELS, transformer
from tests.experiments.conftest import Said


def net() -> BertForSequenceClassification:
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=len(transformer.tokenizer(str(TEXT_MODELS["tiny-bert"]))),
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=64,
        )
    )


@pytest.mark.parametrize("dataset", ["sentences", "shapes"])
def test_a_function_of_a_text_model_is_told_how_an_experiment_names_it(
    dataset: str, said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    task = f"[task]\nmodel = '{net.__module__}:net'\ndataset = '{dataset}'\n"
    Path("x.toml").write_text(f"name = 'x'\n{task}")
    code, _, error = said("run", "x.toml")
    assert (code, error.count("\n")) == (2, 1)
    assert f"'{net.__module__}:net' makes BertForSequenceClassification, a text model" in error


def test_the_folder_that_is_named_instead_works(
    said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    net().save_pretrained("folder")
    transformer.tokenizer(str(TEXT_MODELS["tiny-bert"])).save_pretrained("folder")
    federation = "[federation]\nengine = 'in-process'\nclients = 2\n"
    task = "[task]\nmodel = './folder'\ndataset = 'sentences'\n"
    Path("x.toml").write_text(f"name = 'x'\nattacks = [{{ name = 'span' }}]\n{task}{federation}")
    assert said("simulate", "x.toml")[0] == 0
