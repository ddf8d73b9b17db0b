"""The spans of a trace in the order in which they happened, with what they used."""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from heddle.store.control.agents.reads import Node
from heddle.store.control.agents.table import TOKENS
from heddle.trace.prices import PricedUsage, Prices, ProjectPrices
from heddle.wire.calls import Usage
from heddle.wire.inference import sum_of_costs

INVOKE_AGENT = "invoke_agent"
EXECUTE_TOOL = "execute_tool"
COSTS = ("input_cost_usd", "output_cost_usd", "total_cost_usd")


@dataclass(slots=True)
class Totals:
    """Tokens and costs summed over spans; a cost is None while no span had a price."""

    input_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    input_cost_usd: float | None = None
    output_cost_usd: float | None = None
    total_cost_usd: float | None = None

    def add(self, other: "Totals") -> None:
        """Add what another sum holds."""
        for name in TOKENS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in COSTS:
            setattr(self, name, sum_of_costs((getattr(self, name), getattr(other, name))))


class Pricing:
    """What spans cost at the prices of a project."""

    def __init__(self, prices: Prices, own: ProjectPrices) -> None:
        self._prices = prices
        self._own = own

    def totals(self, node: Node) -> Totals:
        """The tokens and the cost of one span."""
        totals = Totals(**{name: getattr(node, name) or 0 for name in TOKENS})
        price = self._prices.pick(self._own, node.model, node.started_at) if node.model else None
        if price is not None:
            caches = totals.cache_read_input_tokens, totals.cache_creation_input_tokens
            used = Usage(price.llm_id, 0, totals.input_tokens, totals.output_tokens, None, *caches)
            priced = PricedUsage.of(used, price)
            totals.input_cost_usd = priced.prompt_tokens_total_cost
            totals.output_cost_usd = priced.completion_tokens_total_cost
            totals.total_cost_usd = priced.total
        return totals


class Timeline:
    """The spans of one trace in the order of a walk; `events` holds 2·index for entering a span, +1 for leaving it.

    `labels` is the agent that a span acts for: its own, else that of the nearest span above that names one.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = nodes
        self.events = array("q")
        self.labels = [""] * len(nodes)
        self._parents = array("q", [-1]) * len(nodes)
        self._entered_at = array("q", [0]) * len(nodes)
        self._walk(self._children())

    @property
    def root(self) -> Node | None:
        """The span that stands for the trace: the only one without a parent, else the one that ended last."""
        roots = [node for node in self.nodes if not node.parent_span_id]
        if len(roots) == 1:
            return roots[0]
        return max(self.nodes, key=lambda node: (node.ended_at, node.span_id), default=None)

    def totals(self, pricing: Pricing) -> Totals:
        """The sum over all spans, those that only repeat what others used left out."""
        return _sum(pricing.totals(node) for node in self.nodes if node.is_counted)

    def subtree(self, index: int, pricing: Pricing) -> Totals:
        """The sum over a span and all below it."""
        first = self._entered_at[index]
        last = self.events.index(2 * index + 1, first)
        entered = (event // 2 for event in self.events[first:last] if not event % 2)
        own = [self.nodes[place] for place in entered]
        counted = [node for node in own if node.is_counted]
        return _sum(pricing.totals(node) for node in counted or own)

    def _children(self) -> dict[int, list[int]]:
        """The places of the spans below each span; -1 has the roots and the spans whose parent is not here.

        Of spans below the same one that began together, the first ended is the first: some clients tell whole
        milliseconds, in which a tool is done and the next request begins.
        """
        places = {node.span_id: index for index, node in enumerate(self.nodes)}
        children: dict[int, list[int]] = {}
        for index, node in enumerate(self.nodes):
            parent = places.get(node.parent_span_id, -1) if node.parent_span_id else -1
            children.setdefault(-1 if parent == index else parent, []).append(index)
        for parent, below in children.items():
            if parent >= 0:
                below.sort(key=lambda index: (self.nodes[index].started_at, self.nodes[index].ended_at))
        return children

    def _walk(self, children: dict[int, list[int]]) -> None:
        entered = bytearray(len(self.nodes))
        # Spans that are each other's parents hang on no root: the first of them becomes one.
        for root in (*children.get(-1, ()), *range(len(self.nodes))):
            if not entered[root]:
                self._walk_from(root, children, entered)

    def _walk_from(self, root: int, children: dict[int, list[int]], entered: bytearray) -> None:
        waiting = [2 * root]
        while waiting:
            event = waiting.pop()
            index = event // 2
            if event % 2:
                self.events.append(event)
                continue
            if entered[index]:
                continue
            entered[index] = 1
            self._entered_at[index] = len(self.events)
            self.events.append(event)
            above = self._parents[index]
            self.labels[index] = _label(self.nodes[index], self.labels[above] if above >= 0 else "")
            waiting.append(event + 1)
            for child in reversed(children.get(index, ())):
                if not entered[child]:
                    self._parents[child] = index
                    waiting.append(2 * child)


def _label(node: Node, nearest: str) -> str:
    if node.own_agent or nearest:
        return node.own_agent or nearest
    prefix = f"{INVOKE_AGENT} "
    named = node.operation_name == INVOKE_AGENT and node.span_name.startswith(prefix)
    return node.span_name[len(prefix) :].strip() if named else ""


def _sum(items: Iterable[Totals]) -> Totals:
    total = Totals()
    for item in items:
        total.add(item)
    return total
