"""A check, before anything starts, that this machine has the GPUs the workers ask for."""

from __future__ import annotations

from experiments.plan.config import ExperimentConfig
from fedsim.errors import ConfigError


def check_gpus(experiment: ExperimentConfig, *, training: bool, attacking: bool) -> None:
    """Raise ``ConfigError`` if the workers of a stage ask for more GPUs than there are.

    Otherwise they would run on the CPU or wait for each other forever. A Ray cluster joined by its
    address has its own GPUs and is not checked.
    """
    federation, stage = experiment.federation, experiment.attack_stage
    on_ray = federation.engine == "ray"
    if on_ray and stage.address:
        return
    if training:
        # Client workers hold their GPUs until the training ends; attack jobs take turns.
        workers = federation.client_workers if on_ray else 1
        _check("federation.client_gpus", federation.client_gpus, workers)
    if attacking:
        _check("attack_stage.gpus", stage.gpus, 1)


def _check(option: str, share: float, workers: int) -> None:
    if not share:
        return
    if share > 1 and share % 1:
        raise ConfigError(
            f"{option}: {share:g} is neither a fraction of one GPU nor a whole number. "
            "Write at most 1, or a whole number."
        )
    import torch

    have = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if workers > (have // int(share) if share >= 1 else have * int(1 / share)):
        raise ConfigError(
            f"{option}: {workers} x {share:g} GPUs are needed at the same time, but torch finds "
            f"{have}. Lower --gpus or --workers; --gpus 0 runs on the CPU."
        )
