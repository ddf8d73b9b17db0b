"""From messages to prompts."""

import json
import subprocess
import sys
from typing import Any

import pytest

from heddle.errors import InvalidRequest
from heddle.inference.prompt.messages import ChatMessage, template_messages
from heddle.inference.prompt.template import Prompt, build_prompt, choose_template
from heddle.inference.tokenizer import Tokenizer
from tests.unit.inference.vocabularies import CHATML, backend, tokenizer

HELLO = ({"role": "user", "content": "fox"},)
ALL = (*HELLO, {"role": "assistant", "content": "the dog "})
THINKS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content | trim }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}{% endif %}"
)
OPENS = "{% for m in messages %}{{ m.content }}{% endfor %}<think>\n"
BY_ROLE = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"


def prompt(*messages: dict[str, Any], template: str = CHATML, **options: Any) -> Prompt:
    """The prompt of a model with that template."""
    given = template_messages([ChatMessage.model_validate(message) for message in messages])
    return build_prompt(tokenizer(template=template), given, **options)


def refused(*messages: dict[str, Any], **options: Any) -> str | None:
    """The field by whose name the request is refused."""
    with pytest.raises(InvalidRequest) as caught:
        prompt(*messages, **options)
    return caught.value.param


def test_text_and_tokens_of_a_conversation() -> None:
    made = prompt(*ALL)
    assert made.text == (
        "<|im_start|>user\nfox<|im_end|>\n<|im_start|>assistant\nthe dog <|im_end|>\n<|im_start|>assistant\n"
    )
    assert tokenizer().decode(made.token_ids, skip_special_tokens=False) == made.text
    assert made.token_ids.count(tokenizer().token_id("<|im_end|>")) == 2
    assert (made.ignored, made.opens_reasoning, made.may_reason) == ((), False, False)


def test_without_the_generation_prompt() -> None:
    assert prompt(*HELLO, add_generation_prompt=False).text == "<|im_start|>user\nfox<|im_end|>\n"


@pytest.mark.parametrize("template", [CHATML, THINKS])
@pytest.mark.parametrize("content", ["the dog ", " the\n", "fox", "", "user", "<|im_end|>"])
def test_a_continued_message_ends_right_after_its_content(template: str, content: str) -> None:
    last = {"role": "assistant", "content": content}
    made = prompt(*HELLO, last, template=template, continue_final_message=True, add_generation_prompt=False)
    begin = "<|im_start|>user\nfox<|im_end|>\n<|im_start|>assistant\n"
    assert made.text == begin + (content if template == CHATML else content.lstrip())


def test_parts_of_a_continued_message_are_all_there() -> None:
    last = {"role": "assistant", "content": ["a", "b "]}
    made = prompt(*HELLO, last, continue_final_message=True, add_generation_prompt=False)
    assert made.text.endswith("<|im_start|>assistant\na\nb ")


def test_reasoning_can_be_continued() -> None:
    last = {"role": "assistant", "content": None, "reasoning": "because "}
    options = {"continue_final_message": True, "add_generation_prompt": False}
    made = prompt(*HELLO, last, template=THINKS, **options)
    assert made.text.endswith("<think>because ")
    assert made.opens_reasoning
    inside = {"role": "assistant", "content": "<think>be"}
    assert prompt(*HELLO, inside, template=THINKS, **options).opens_reasoning
    assert not prompt(*HELLO, {"role": "assistant", "content": "<think>a</think>b"}, **options).opens_reasoning


@pytest.mark.parametrize(
    "last",
    [
        {"role": "assistant", "content": "x", "tool_calls": [{"function": {"name": "f"}}]},
        {"role": "assistant", "content": None, "reasoning": "not written by this template"},
    ],
)
def test_what_cannot_be_continued_is_refused(last: dict[str, Any]) -> None:
    options = {"continue_final_message": True, "add_generation_prompt": False}
    assert refused(*HELLO, last, **options) == "continue_final_message"


def test_the_two_flags_exclude_each_other() -> None:
    assert refused(*ALL, continue_final_message=True) == "continue_final_message"


def test_the_models_other_tokens_reach_the_template_and_its_start_is_added_when_asked() -> None:
    from tokenizers.processors import TemplateProcessing

    made = backend("byte level")
    start = made.token_to_id("<|im_start|>")
    made.post_processor = TemplateProcessing("<|im_start|> $A", special_tokens=[("<|im_start|>", start)])
    own = Tokenizer(made, {"bos_token": "<think>"}, {"default": "{{ bos_token }}fox"})
    plain = build_prompt(own, [{"role": "user", "content": "x"}])
    assert plain.text == "<think>fox"
    more = build_prompt(own, [{"role": "user", "content": "x"}], add_special_tokens=True)
    assert more.token_ids == (start, *plain.token_ids)


def test_documents_and_tools_reach_the_template() -> None:
    template = "{{ tools | tojson }}{{ documents[0].title }}{{ messages | length }}"
    made = prompt(*HELLO, template=template, tools=[{"type": "function"}], documents=[{"title": "T", "text": "x"}])
    assert made.text == '[{"type": "function"}]T1'


def test_what_the_template_has_no_use_for_is_listed() -> None:
    made = prompt(
        *HELLO,
        template=CHATML,
        documents=[{"title": "T"}],
        reasoning_effort="low",
        template_kwargs={"foo": 1, "add_generation_prompt": True},
    )
    assert made.ignored == ("chat_template_kwargs.foo", "reasoning_effort", "documents")


def test_tools_without_a_place_in_the_template_are_refused() -> None:
    tools = [{"type": "function"}]
    assert refused(*HELLO, template=THINKS, tools=tools) == "tools"
    assert refused(*HELLO, chat_template="{{ messages[0].content }}", tools=tools) == "tools"


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({}, "-/-"),
        ({"reasoning_effort": "high"}, "high/True"),
        ({"reasoning_effort": "none"}, "none/False"),
        ({"reasoning_effort": "none", "template_kwargs": {"enable_thinking": True}}, "none/True"),
        ({"reasoning_effort": "low", "template_kwargs": {"reasoning_effort": "high"}}, "high/True"),
    ],
)
def test_reasoning_effort_and_thinking(options: dict[str, Any], shown: str) -> None:
    template = "{{ reasoning_effort or '-' }}/{{ enable_thinking if enable_thinking is defined else '-' }}"
    assert prompt(*HELLO, template=template, **options).text == shown


def test_whether_the_prompt_opens_a_reasoning_block() -> None:
    assert prompt(*HELLO, template=OPENS).opens_reasoning
    asks = {"role": "user", "content": "what is <think>"}
    assert not prompt(asks).opens_reasoning
    assert not prompt(*HELLO, template=THINKS, reasoning_effort="none").opens_reasoning


@pytest.mark.parametrize(
    ("template", "effort", "expected"),
    [(THINKS, None, True), (THINKS, "low", True), (THINKS, "none", False), (OPENS, None, False), (CHATML, None, False)],
)
def test_whether_the_model_may_open_a_block_itself(template: str, effort: str | None, expected: bool) -> None:
    made = prompt(*HELLO, template=template, reasoning_effort=effort, find_reasoning=True)
    assert made.may_reason is expected


def test_the_template_of_the_request_and_its_variables() -> None:
    source = "{% for m in messages %}{{ m.content }}|{{ foo }}{% endfor %}"
    kwargs = {"foo": "bar", "chat_template": "not this one"}
    assert prompt(*HELLO, chat_template=source, template_kwargs=kwargs).text == "fox|bar"
    made = prompt(*HELLO, template_kwargs={"chat_template": "x", "foo": 1})
    assert (made.text, made.ignored) == ("x", ("chat_template_kwargs.foo",))


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"chat_template": "{% for m in messages"}, "chat_template"),
        ({"chat_template": "{{ raise_exception('x') }}"}, "chat_template"),
        ({"chat_template": ""}, "chat_template"),
        ({"template_kwargs": {"chat_template": 3}}, "chat_template_kwargs.chat_template"),
        ({"template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"template_kwargs": {"tools": []}}, "chat_template_kwargs"),
        ({"template_kwargs": {"add_generation_prompt": False}}, "chat_template_kwargs"),
        ({"template": "{{ raise_exception('x') }}"}, "messages"),
        ({"template": "{{ 1 / 0 }}"}, "messages"),
        ({"template": "{{ '' }}"}, "messages"),
        ({"template": "{{ messages[0].content * 99 }}", "max_tokens": 1}, "input_tokens"),
    ],
)
def test_failures_name_their_field(options: dict[str, Any], param: str) -> None:
    assert refused(*HELLO, **options) == param


def test_no_messages_are_refused() -> None:
    assert refused() == "messages"


def test_a_role_that_the_template_drops_is_refused_and_one_that_it_writes_is_not() -> None:
    alien = {"role": "alien", "content": ["x", "42!"]}
    assert "alien\nx\n42!" in prompt(*HELLO, alien).text
    assert refused(*HELLO, alien, template=BY_ROLE) == "messages.1.role"
    assert prompt(*HELLO, alien, chat_template=BY_ROLE).text == "fox"
    as_json = BY_ROLE.replace("{% endif %}", "{% else %}{{ m | tojson }}{% endif %}")
    quoted = {"role": "alien", "content": 'say "hi"\n'}
    assert '\\"hi\\"' in prompt(*HELLO, quoted, template=as_json).text


def test_which_of_several_templates_is_taken() -> None:
    several = Tokenizer(backend("byte level"), {}, {"default": "a", "tool_use": "b", "rag": "c"})
    assert choose_template(several).source == "a"
    assert choose_template(several, with_tools=True).source == "b"
    named = choose_template(several, "rag", with_tools=True)
    assert (named.source, named.from_request) == ("c", False)
    own = choose_template(several, "{{ 1 }}")
    assert (own.source, own.from_request) == ("{{ 1 }}", True)


def test_a_model_without_a_template_needs_one_in_the_request() -> None:
    bare = Tokenizer(backend("byte level"), {}, {})
    with pytest.raises(InvalidRequest) as caught:
        build_prompt(bare, [{"role": "user", "content": "x"}])
    assert caught.value.param == "chat_template"
    assert build_prompt(bare, [{"role": "user", "content": "x"}], chat_template="fox").text == "fox"


def test_the_front_loads_without_the_packages_of_the_extra() -> None:
    program = (
        "import sys\n"
        "for name in ('jinja2', 'tokenizers', 'llguidance', 'torch', 'transformers'): sys.modules[name] = None\n"
        "import heddle.inference.prompt.template, heddle.inference.detokenizer, heddle.inference.tools\n"
        "import heddle.inference.prompt.reasoning\n"
        "from pathlib import Path\n"
        "from heddle.errors import ExtraMissing\n"
        "from heddle.inference.tokenizer import Tokenizer\n"
        "try: Tokenizer.load(Path('.'))\n"
        "except ExtraMissing as error: print(error.reason)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ".[inference]" in done.stdout


WAYS_TO_WRITE_ARGUMENTS = {
    "JSON": "{{ call.arguments | tojson }}",
    "the whole call as JSON": "{{ call | tojson }}",
    "text": "{% if call.arguments is string %}{{ call.arguments }}{% else %}{{ call.arguments | tojson }}{% endif %}",
    "pairs of a filter": "{% for name, value in call.arguments | items %}{{ name }}={{ value }}{% endfor %}",
    "pairs of a method": "{% for name, value in call.arguments.items() %}{{ name }}={{ value }}{% endfor %}",
    "keys": "{% for name in call.arguments %}{{ name }}={{ call.arguments[name] }}{% endfor %}",
    "glued text": "{{ 'call: ' + call.arguments }}",
    "a mapping or nothing": "{% if call.arguments is mapping %}{{ call.arguments | tojson }}{% endif %}",
}


@pytest.mark.parametrize("way", WAYS_TO_WRITE_ARGUMENTS)
@pytest.mark.parametrize("arguments", ['{"city": "Par', "no JSON", "[1]"])
def test_broken_arguments_of_an_earlier_call_are_written_by_every_template(way: str, arguments: str) -> None:
    template = (
        "{% for message in messages %}[{{ message.content }}]{% for each in message.tool_calls or [] %}"
        f"{{% set call = each.function %}}{WAYS_TO_WRITE_ARGUMENTS[way]}{{% endfor %}}{{% endfor %}}"
    )
    call = {"id": "call-1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    history = [
        {"role": "user", "content": "fox"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call-1", "content": "no JSON"},
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": None},
        {"role": "user", "content": "dog"},
    ]
    text = prompt(*history, template=template).text
    assert text.startswith("[fox][]") and text.endswith("[no JSON][][][dog]")
    assert arguments in text or json.dumps(arguments)[1:-1] in text or json.dumps(json.dumps(arguments))[3:-3] in text
