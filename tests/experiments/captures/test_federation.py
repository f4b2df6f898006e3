"""``fedsim init``: the captured federation as an experiment that can be planned and run."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.captures.federation import experiment_of
from experiments.pipeline import execute
from experiments.plan.config import load_plan
from experiments.plan.folder import STAGES, Run
from fedsim.config import named_code
from fedsim.errors import ConfigError
from fedsim.models.adapters import Adapters, adapt
from fedsim.store.capture import CaptureKey, CaptureStore
from fedsim.tasks import initial_weights, make_task
from tests.experiments.captures.cases import adapters, by_name, federate
from tests.experiments.captures.conftest import Held
from tests.experiments.conftest import Said


@pytest.fixture
def captures(held: Held, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    federate(held, held.model, by_name, tmp_path, model=held.model, tokenizer=held.tokenizer)
    return tmp_path / "captures"


@pytest.mark.slow
def test_a_captured_language_model_is_planned_and_run(
    captures: Path, held: Held, said: Said, tmp_path: Path
) -> None:
    code, text, _ = said("init", captures)
    assert (code, "fill in dataset, local_steps, optimizer, learning_rate" in text) == (0, True)
    plan = load_plan("federation.toml", ["attacks=[{ name = 'span' }]", "auxiliary.rows=5"])
    (experiment,) = plan.experiments
    federation = experiment.federation
    assert (federation.protocol, federation.clients, federation.batch_size) == ("fedavg", 12, 7)
    assert [table["name"] for table in experiment.defenses] == [
        *("none", "gaussian_noise", "gaussian_noise", "prune", "freeze_embeddings", "clip")
    ]
    from fedsim.data.rows import load_rows

    task = make_task(experiment.task, load_rows("sentences", "train[:4]", modality="text"))
    sent = initial_weights(task, experiment.task, 0)
    assert torch.equal(sent["transformer.wte.weight"], held.before["transformer.wte.weight"])
    assert said("show", "federation.toml")[0] == 0
    few = ["federation.batch_size=1", "federation.clients=2"]
    small = load_plan("federation.toml", [*few, "defenses=[{ name = 'none' }]"])
    outcome = execute(Run.create(small, tmp_path / "run"), STAGES, quiet=True)
    assert outcome.statuses == {"done": 6}


def test_a_file_is_not_overwritten_and_needs_its_model(captures: Path, tmp_path: Path) -> None:
    (tmp_path / "here.toml").write_text("mine")
    with pytest.raises(ConfigError, match=r"here\.toml: exists"):
        experiment_of(captures, tmp_path / "here.toml")
    (captures / "task.json").unlink()
    with pytest.raises(ConfigError, match="say which model"):
        experiment_of(captures, tmp_path / "there.toml")
    assert not (tmp_path / "there.toml").exists()


def test_adapters_are_adapters_again(held: Held, tmp_path: Path) -> None:
    lora = Adapters(rank=4, alpha=8.0, targets=("c_attn",), head=False)
    model = adapt(copy.deepcopy(held.model), lora)
    federate(held, model, adapters, tmp_path, model=model, tokenizer=held.tokenizer)
    experiment_of(tmp_path / "captures", tmp_path / "lora.toml")
    (experiment,) = load_plan(str(tmp_path / "lora.toml")).experiments
    task = experiment.task
    assert (task.lora_rank, task.lora_alpha, task.lora_targets) == (4, 8.0, ("c_attn",))


@pytest.mark.parametrize("numbered", [False, True])
def test_steps_are_counted_by_batch_normalisation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, numbered: bool
) -> None:
    """Whether the arrays have names, or are the list of a ``NumPyClient``."""
    from fedsim.store.files import save_tensors, write_json
    from fedsim.tasks import save_task
    from fedsim.tasks.given import task_of

    def loss(model: Any, batch: Any) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(model(batch.inputs), batch.labels)

    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3),
        torch.nn.BatchNorm2d(4),
        torch.nn.Flatten(),
        torch.nn.Linear(4 * 900, 10),
    )
    monkeypatch.setenv(named_code.ALLOWED, "{}")
    task = task_of(net, loss=loss, image_shape=(3, 32, 32))
    store = CaptureStore(tmp_path / "captures")
    (store.root / "models").mkdir(parents=True)
    sent = {name: value.clone() for name, value in net.state_dict().items()}
    trained = {name: value + 0.01 for name, value in sent.items()}
    trained["1.num_batches_tracked"] = torch.tensor(4)
    trained["1.running_var"] += 5
    norm = 0.01 * sum(value.numel() for value in net.parameters()) ** 0.5
    if numbered:
        sent, trained = (
            {str(place): value for place, value in enumerate(tensors.values())}
            for tensors in (sent, trained)
        )
    key = CaptureKey(round=1, client=9)
    known = save_tensors(store.root / "models" / "x.safetensors", sent)
    (store.root / "models" / "x.safetensors").rename(store.sent_path(known))
    sha256 = save_tensors(store.tensors_path(key), trained)
    from fedsim.knowledge import Knowledge
    from fedsim.store.capture import CaptureRecord

    record = CaptureRecord(
        key=key,
        kind="weights",
        order=tuple(trained),
        sha256=sha256,
        bytes=1,
        sent_sha256=known,
        sent_order=tuple(sent),
        knowledge=Knowledge(learning_rate=0.3),
        claimed_examples=128,
    )
    write_json(store.tensors_path(key).with_suffix(".json"), record.sealed())
    save_task(task, store.root)
    lacking = experiment_of(store.root, tmp_path / "own.toml")
    (experiment,) = load_plan(str(tmp_path / "own.toml")).experiments
    federation = experiment.federation
    assert (federation.local_steps, federation.batch_size) == (4, 32)
    assert (federation.learning_rate, federation.train_mode) == (0.3, True)
    assert experiment.auxiliary is not None
    assert experiment.auxiliary.rows == 256  # for two updates of 128
    assert lacking == "model, dataset, optimizer"  # an object names no code
    assert experiment.defenses[-1]["norm"] == pytest.approx(norm / 2, rel=0.05)  # two digits
    names = [str(attack["name"]) for attack in experiment.attacks]
    assert names == ["inverting", "ridge", "statistics", "prior_only"]
    experiment_of(store.root, tmp_path / "named.toml", "app:Net")
    assert load_plan(str(tmp_path / "named.toml")).experiments[0].task.model == "app:Net"
