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
    for text in ("{", '{"forms": {"int9": {}}}', '{"forms": {"int8": {"file": "../secret"}}}'):
        (tmp_path / "forms.json").write_text(text)
        with pytest.raises(ModelError, match="does not say what forms there are"):
            read_forms(tmp_path)


def test_a_task_is_given_no_more_files_than_its_form_needs() -> None:
    assert files_to_leave("original") == {"forms.json", "int8.onnx", "float16.safetensors", "network.onnx"}
    assert files_to_leave("auto") == {"int8.onnx", "float16.safetensors"}
    assert files_to_leave("int8") == {"network.safetensors", "float16.safetensors", "network.onnx"}
