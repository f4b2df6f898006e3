"""Whether captures say which model they are of, told by files of a few hundred bytes."""

from pathlib import Path

from safetensors import safe_open

from fedsim.config.named_code import check_code
from fedsim.errors import ConfigError
from fedsim.store.files import read_json


def check_model_is_known(captures: Path) -> None:
    """Refuse captures that nobody named the model of, without torch.

    Raises:
        ConfigError: no ``task.json`` says which model it is.
        StoreError: it names code, which a user has to name.
    """
    written = captures / "task.json"
    if written.exists():
        table = read_json(written)
        known = table if isinstance(table, dict) else {}
        if factory := str(known.get("factory") or ""):
            check_code(factory, str(known.get("loss") or ""), written)
        return
    reply, types = next(captures.glob("round-*/client-*.safetensors"), None), list[str]()
    if reply is not None:
        with safe_open(reply, framework="np") as file:
            types = [file.get_slice(name).get_dtype() for name in file.keys()]
    if types == ["U8"]:
        raise ConfigError(
            f"{captures}: replies are bytes, as a model of trees is sent. If they are XGBoost's, "
            f"run fedsim trees {captures}."
        )
    raise ConfigError(
        f"{captures}: does not say which model it is about. Pass it: --model HUB_ID_OR_FOLDER, "
        "of a network of images --model MODULE:FUNCTION --loss MODULE:FUNCTION --image-shape "
        "3,32,32; or model= of Eavesdropper while capturing."
    )
