from hashlib import sha256
from pathlib import Path

import pytest

from sparkdl.errors import ConfigError, ModelError
from sparkdl.models import FORM_FILES, Form, checked_form, files_to_leave, read_forms, write_forms


def some_form(content: bytes) -> Form:
    return Form(
        sha256=sha256(content).hexdigest(),
        bytes=len(content),
        original_bytes=100,
        made="by hand",
        metric="validation_accuracy",
        figure=0.5,
        original_figure=0.5,
        rows=3,
    )


def test_a_form_that_is_not_there_is_told_with_what_makes_it(tmp_path: Path) -> None:
    assert read_forms(tmp_path) == {}
    with pytest.raises(ConfigError, match=r"no form 'int8'; it has none\. `sparkdl compress` makes"):
        checked_form(tmp_path, "int8")
    write_forms(tmp_path, {"onnx": some_form(b"x")})
    with pytest.raises(ConfigError, match=r"no form 'int8'; it has onnx\."):
        checked_form(tmp_path, "int8")


def test_a_form_whose_file_is_another_one_is_not_opened(tmp_path: Path) -> None:
    write_forms(tmp_path, {"onnx": some_form(b"network")})
    with pytest.raises(ModelError, match="the model's form 'onnx' is missing"):
        checked_form(tmp_path, "onnx")
    (tmp_path / FORM_FILES["onnx"]).write_bytes(b"another")
    with pytest.raises(ModelError, match="the model's form 'onnx' is damaged: the SHA-256 of"):
        checked_form(tmp_path, "onnx")
    (tmp_path / FORM_FILES["onnx"]).write_bytes(b"network")
    assert checked_form(tmp_path, "onnx") == tmp_path / FORM_FILES["onnx"]


def test_a_manifest_that_is_none_is_told(tmp_path: Path) -> None:
    elsewhere = some_form(b"x").model_copy(update={"file": "../secret"})
    for text in (f'{{"forms": {{"int8": {elsewhere.model_dump_json()}}}}}', "{", '{"forms": {"int9": {}}}'):
        (tmp_path / "forms.json").write_text(text)
        with pytest.raises(ModelError, match="is not a valid description of forms"):
            read_forms(tmp_path)


def test_a_task_is_given_no_more_files_than_its_form_needs(tmp_path: Path) -> None:
    assert files_to_leave(tmp_path, "original") == {"forms.json"}
    write_forms(tmp_path, {name: some_form(b"x") for name in ("int8", "float16", "onnx")})
    assert files_to_leave(tmp_path, "original") == {"forms.json", "int8.onnx", "float16.safetensors", "network.onnx"}
    assert files_to_leave(tmp_path, "auto") == {"int8.onnx", "float16.safetensors"}
    assert files_to_leave(tmp_path, "int8") == {"network.safetensors", "float16.safetensors", "network.onnx"}


def test_a_form_of_many_files_is_found_by_its_own_name_and_does_without_them(tmp_path: Path) -> None:
    form = some_form(b"x").model_copy(update={"file": "int8.safetensors", "replaces": ("one", "other")})
    write_forms(tmp_path, {"int8": form})
    (tmp_path / "int8.safetensors").write_bytes(b"x")
    assert checked_form(tmp_path, "int8") == tmp_path / "int8.safetensors"
    assert files_to_leave(tmp_path, "int8") == {"one", "other"}
    assert files_to_leave(tmp_path, "original") == {"forms.json", "int8.safetensors"}
