"""Publish, read, version, tag, alias and delete: plain objects, ops, models, prompts."""

import weave
from common import plain, report, start
from weave.trace.weave_client import ObjectRef

client = start()


def tried(action: object, *arguments: object) -> str:
    """The class name of what the action raises, or `no error`."""
    try:
        action(*arguments)
    except Exception as error:
        return type(error).__name__
    return "no error"


def location(ref: ObjectRef) -> list[str]:
    """Name and digest of a ref."""
    return [ref.name, ref.digest]


# Versions of one name; publishing the same value again makes no new version.
first = weave.publish({"a": 1, "text": "é", "list": [1, 2.5, None, True]}, name="config")
again = weave.publish({"a": 1, "text": "é", "list": [1, 2.5, None, True]}, name="config")
second = weave.publish({"a": 2, "nested": {"b": [{"c": "d"}]}}, name="config")
third = weave.publish({"a": 3}, name="config")
versions = {
    "digests": [first.digest, again.digest, second.digest, third.digest],
    "first": plain(weave.ref(first.uri()).get()),
    "second": plain(weave.ref("config:v1").get()),
    "latest": plain(weave.ref("config").get()),
    "path": plain(weave.ref(second.uri() + "/key/nested/key/b/index/0/key/c").get()),
}

# A nested object is published on its own and stays a ref inside its parent.
inner = weave.publish({"kind": "inner"}, name="inner")
holder = weave.publish({"inner": weave.ref(inner.uri()).get(), "plain": 7}, name="holder")
holder_seen = weave.ref(holder.uri()).get()
nested = {"uri": inner.uri(), "value": plain(holder_seen["inner"]), "plain": holder_seen["plain"]}


@weave.op
def shout(text: str, times: int = 1) -> str:
    """An op that is published and called again from what is stored."""
    return text.upper() * times


op_ref = weave.publish(shout)
client.flush()
loaded_op = weave.ref(op_ref.uri()).get()
op_seen = {"ref": location(op_ref), "result": loaded_op("ab", times=2), "code": loaded_op.get_captured_code()}


class Greeter(weave.Model):
    """A model with attributes and a method op."""

    greeting: str
    punctuation: str = "!"

    @weave.op
    def predict(self, name: str) -> str:
        """A greeting."""
        return f"{self.greeting} {name}{self.punctuation}"


greeter = Greeter(greeting="Hello", name="greeter", description="says hello")
model_ref = weave.publish(greeter)
client.flush()
loaded_model = weave.ref(model_ref.uri()).get()
weave.publish(Greeter(greeting="Goodbye", name="greeter"))
model_seen = {
    "ref": location(model_ref),
    "greeting": loaded_model.greeting,
    "description": loaded_model.description,
    "prediction": loaded_model.predict("Ada"),
}

string_prompt = weave.StringPrompt("Answer {question} in {language}")
string_ref = weave.publish(string_prompt, name="string-prompt")
messages_prompt = weave.MessagesPrompt(
    [{"role": "system", "content": "You are {who}."}, {"role": "user", "content": "{question}"}]
)
messages_ref = weave.publish(messages_prompt, name="messages-prompt")
prompts = {
    "string": weave.ref(string_ref.uri()).get().format(question="it", language="Latin"),
    "messages": plain(weave.ref(messages_ref.uri()).get().format(who="a poet", question="Why?")),
    "content": weave.StringPrompt.from_uri(string_ref.uri()).content,
}

# Tags hang on a version, an alias moves between versions.
client.add_tags(first, ["reviewed", "blue team"])
client.add_tags(second, ["draft"])
client.set_aliases(first, "production")
client.set_aliases(first, ["stable", "champion"])
by_alias = plain(weave.ref("config:production").get())
before = {"tags": client.get_tags(first), "aliases": client.get_aliases(first)}
client.set_aliases(second, "production")
client.remove_tags(first, ["blue team"])
client.remove_aliases(first, "stable")
labels = {
    "by_alias": by_alias,
    "moved_alias": plain(weave.ref("config:production").get()),
    "before": before,
    "first": client.get_tags_and_aliases(first),
    "second": client.get_tags_and_aliases(second),
    "third": client.get_tags_and_aliases(third),
    "all_tags": client.list_tags(),
    "all_aliases": client.list_aliases(),
    "reserved": tried(client.set_aliases, first, "latest"),
}

# Deleting: one version, then the rest, then a whole name.
client.delete_object_version(third)
client.flush()
after_one = {"latest": plain(weave.ref("config").get()), "gone": tried(weave.ref(third.uri()).get)}
doomed = [weave.publish({"n": n}, name="doomed") for n in range(3)]
deleted = client.delete_object_versions("doomed", [doomed[0].digest, doomed[2].digest])
remaining = plain(weave.ref("doomed").get())
deleted_all = client.delete_all_object_versions("doomed")
gone = tried(weave.ref("doomed").get)


@weave.op
def short_lived() -> int:
    """An op whose version is deleted."""
    return 1


short_ref = weave.publish(short_lived)
client.delete_op_version(short_ref)
deletion = {
    "after_one": after_one,
    "deleted": deleted,
    "remaining": remaining,
    "deleted_all": deleted_all,
    "gone": gone,
    "op_gone": tried(weave.ref(short_ref.uri()).get),
}
client.flush()
report(
    versions=versions,
    nested=nested,
    op=op_seen,
    model=model_seen,
    prompts=prompts,
    labels=labels,
    deletion=deletion,
)
