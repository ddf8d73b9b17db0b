"""A conversation of two turns through the conversation API, and every read of agents that the client has."""

from datetime import UTC, datetime, timedelta

from common import report, start
from opentelemetry import trace
from weave.conversation import Message, Usage, start_conversation

client = start()
start_time = datetime.now(UTC) - timedelta(minutes=5)
conversation = start_conversation(
    agent_name="guide", model="gpt-4o", conversation_id="tour", conversation_name="A tour", attributes={"tenant": "t1"}
)
with conversation:
    with conversation.start_turn(user_message="Where is the tower?", agent_version="3") as turn:
        with turn.start_llm(provider_name="openai") as llm:
            llm.record(input_messages=[Message(role="user", content="Where is the tower?")])
            llm.think("look it up")
            llm.usage = Usage(input_tokens=11, output_tokens=7)
        with turn.start_tool(name="map", arguments='{"q":"tower"}', tool_call_id="t1") as tool:
            tool.result = "north"
        with turn.start_subagent(name="checker") as checker, checker.start_llm(provider_name="openai") as inner:
            inner.output("North it is")
        with turn.start_llm(provider_name="openai") as last:
            last.record(input_messages=[Message(role="user", content="Where is the tower?")])
            last.output("In the north.")
            last.usage = Usage(input_tokens=20, output_tokens=4)
    with (
        conversation.start_turn(user_message="Thanks", agent_version="4") as second,
        second.start_llm(provider_name="openai") as closing,
    ):
        closing.record(input_messages=[Message(role="user", content="Thanks")])
        closing.output("You are welcome")
client.flush()
trace.get_tracer_provider().force_flush()

agents = client.get_agents()
versions = client.get_agent_versions(agent_name="guide")
spans = client.get_agent_spans(agent_name="guide")
tools = client.get_agent_spans(query={"$expr": {"$eq": [{"$getField": "tool_name"}, {"$literal": "map"}]}})
turns = client.get_agent_turns(conversation_id="tour")
one = client.get_agent_turn(trace_id=turns.turns[0].trace_id, include_feedback=True)
tokens = {
    "alias": "tokens",
    "value": {"source": "field", "key": "input_tokens"},
    "value_type": "number",
    "aggregations": ["sum"],
}
stats = client.get_agent_span_stats(start=start_time, metrics=[tokens], group_by=[{"key": "agent_name"}])
custom = client.get_agent_custom_attributes()
found = client.search_agents(query="north", agent_name="guide")
report(
    agents=[[agent.agent_name, agent.invocation_count, agent.total_input_tokens] for agent in agents],
    count=len(agents),
    versions=sorted([version.agent_version, version.invocation_count] for version in versions),
    spans=[len(spans), sorted({span.operation_name for span in spans})],
    first_page=[span.span_name for span in client.get_agent_spans(limit=2, page_size=1)],
    tools=[[span.tool_name, span.tool_call_id, span.conversation_id, span.conversation_name] for span in tools],
    turns=[[[message.type, message.agent_name] for message in turn.messages] for turn in turns.turns],
    totals=[turns.total_turns, turns.has_more, one.total_input_tokens, one.agent_name, one.feedback],
    texts=[
        getattr(message, message.type).text
        for message in one.messages
        if message.type in ("user_message", "assistant_message")
    ],
    thought=[message.assistant_message.reasoning_content for message in one.messages if message.assistant_message],
    result=[message.tool_call.tool_result for message in one.messages if message.tool_call],
    stats=[sum(row["sum_tokens"] for row in stats.rows), [column.name for column in stats.columns]],
    tenant=[item.span_count for item in custom.attributes if item.key == "tenant"],
    found=[[item.role, item.content_preview] for group in found.results for item in group.matched_messages],
)
