"""Whether this machine has the GPUs that workers ask for, told before anything starts."""

from __future__ import annotations

from experiments.plan.config import ExperimentConfig
from fedsim.errors import ConfigError


def check_gpus(experiment: ExperimentConfig, *, training: bool, attacking: bool) -> None:
    """Raise ``ConfigError`` where the workers of a stage ask for GPUs that are not there.

    They would compute on the CPU, or wait for ever for one another. A Ray cluster that is joined
    by its address has GPUs of its own, and is not looked at.
    """
    federation, stage = experiment.federation, experiment.attack_stage
    on_ray = federation.engine == "ray"
    if on_ray and stage.address:
        return
    if training:
        # They hold their share until the training ends; attack jobs wait for one another's.
        workers = federation.client_workers if on_ray else 1
        _check("federation.client_gpus", federation.client_gpus, workers)
    if attacking:
        _check("attack_stage.gpus", stage.gpus, 1)


def _check(option: str, share: float, workers: int) -> None:
    if not share:
        return
    if share > 1 and share % 1:
        raise ConfigError(
            f"{option}: {share:g} is more than 1 and not whole. "
            "Ask for a share of one GPU, or for whole ones."
        )
    import torch

    have = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if workers > (have // int(share) if share >= 1 else have * int(1 / share)):
        raise ConfigError(
            f"{option}: {workers} x {share:g} GPUs are asked for at a time, and torch finds {have} "
            "here. Lower --gpus or --workers; --gpus 0 computes on the CPU."
        )
