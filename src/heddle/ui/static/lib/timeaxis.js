// Instants on an axis: where marks stand and how they are written, by how far they lie apart.
const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const exact = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const dayOnly = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
const both = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });

const STEPS = [
  1, 5, 15, 30, 60, 300, 900, 1800, 3600, 10_800, 21_600, 43_200, 86_400, 172_800, 432_000, 864_000, 1_728_000, 5_184_000,
];

/** How instants (seconds since 1970) are written that lie so many seconds apart. */
export function timeText(step) {
  const format = step >= 43_200 ? dayOnly : step >= 3600 ? both : step >= 60 ? clock : exact;
  return (seconds) => format.format(new Date(seconds * 1000)).replace(",", "");
}

/** About `count` round instants between two, by the reader's clock. */
export function timeTicks(first, last, count) {
  const step = STEPS.find((one) => (last - first) / one <= count) ?? Math.ceil((last - first) / count / 86_400) * 86_400;
  const shift = new Date(first * 1000).getTimezoneOffset() * 60;
  const found = [];
  for (let at = Math.ceil((first - shift) / step) * step + shift; at <= last; at += step) found.push(at);
  return { step, places: found };
}
