"""Arithmetic and comparing, with digit-by-digit thoughts."""

from random import Random

from tools.tiny_model.tasks.turn import Turn, turn
from tools.tiny_model.words import NAMES, NUMBER_WORDS, THINGS


def two(random: Random) -> tuple[int, int]:
    """Two numbers below 100, now and then both below 20."""
    high = 19 if random.random() < 0.15 else 99
    return random.randint(0, high), random.randint(0, high)


def add(random: Random) -> Turn:
    first, second = two(random)
    forms = (f"What is {first} + {second}?", f"{first} + {second} = ?", f"{first} plus {second}", f"{first} + {second}")
    return turn(random.choice(forms), str(first + second), *add_thoughts(first, second))


def add_thoughts(first: int, second: int) -> tuple[str, str, str]:
    """Ones, carry and tens, in three lengths."""
    ones, carry = f"{first % 10}+{second % 10}={first % 10 + second % 10}", (first % 10 + second % 10) // 10
    tens = f"{first // 10}+{second // 10}{'+1' if carry else ''}={first // 10 + second // 10 + carry}"
    spoken = f"Ones: {ones}. Tens: {tens}."
    return f"{ones} {tens}", spoken, f"{first} + {second}. {spoken} So {first + second}."


def subtract(random: Random) -> Turn:
    second, first = sorted(two(random))
    forms = (
        f"What is {first} - {second}?",
        f"{first} - {second} = ?",
        f"{first} minus {second}",
        f"{first} - {second}",
    )
    borrow = int(first % 10 < second % 10)
    ones = f"{first % 10 + 10 * borrow}-{second % 10}={first % 10 + 10 * borrow - second % 10}"
    tens = f"{first // 10 - borrow}-{second // 10}={first // 10 - borrow - second // 10}"
    spoken = f"Ones: {ones}. Tens: {tens}."
    high = f"{first} - {second}. {spoken} So {first - second}."
    return turn(random.choice(forms), str(first - second), f"{ones} {tens}", spoken, high)


def multiply(random: Random) -> Turn:
    first, second = random.randint(0, 10), random.randint(0, 10)
    forms = (f"What is {first} * {second}?", f"What is {first} times {second}?", f"{first} * {second} = ?")
    product = str(first * second)
    return turn(random.choice(forms), product, f"{first}*{second}={product}", f"{first} times {second} is {product}.")


def bigger(random: Random) -> Turn:
    first, second = random.sample(range(100), 2)
    if random.random() < 0.3:
        second = first // 10 * 10 + (first + random.randint(1, 9)) % 10
    smaller = random.random() < 0.35
    word = "smaller" if smaller else "bigger"
    answer = min(first, second) if smaller else max(first, second)
    forms = (f"Which is {word}, {first} or {second}?", f"Which number is {word}: {first} or {second}?")
    return turn(random.choice(forms), str(answer), *order_thoughts(first, second))


def order_thoughts(first: int, second: int) -> tuple[str, str]:
    """`3<7`, and the same in words."""
    sign, word = ("=", "equal") if first == second else (("<", "smaller") if first < second else (">", "bigger"))
    return f"{first}{sign}{second}", f"{first} is {word}{' to' if sign == '=' else ' than'} {second}."


def is_bigger(random: Random) -> Turn:
    first, second = random.sample(range(100), 2)
    word = random.choice(("bigger", "smaller"))
    answer = "Yes." if (first > second) == (word == "bigger") else "No."
    return turn(f"Is {first} {word} than {second}?", answer, *order_thoughts(first, second))


def parity(random: Random) -> Turn:
    number = random.randint(0, 99)
    kind = "odd" if number % 2 else "even"
    return turn(f"Is {number} even or odd?", kind, f"{number % 10} {kind}", f"The last digit {number % 10} is {kind}.")


def neighbour(random: Random) -> Turn:
    number = random.randint(1, 98)
    after = random.random() < 0.6
    answer = number + 1 if after else number - 1
    sign = "+1" if after else "-1"
    question = f"Which number comes {'after' if after else 'before'} {number}?"
    return turn(question, str(answer), f"{number}{sign}={answer}")


def number_word(random: Random) -> Turn:
    number = random.randrange(len(NUMBER_WORDS))
    word = NUMBER_WORDS[number]
    if random.random() < 0.5:
        return turn(f"Write {number} as a word.", word, f"{number}={word}", f"The word is {word}.")
    return turn(f"Write {word} as a number.", str(number), f"{word}={number}", f"The number is {number}.")


def count_up(random: Random) -> Turn:
    start = random.randint(0, 20)
    stop = start + random.randint(1, 7)
    answer = " ".join(str(number) for number in range(start, stop + 1))
    forms = (f"Count from {start} to {stop}.", f"Count to {stop} from {start}.")
    return turn(random.choice(forms), answer, f"from {start} to {stop}", f"I count from {start} to {stop}.")


def sort_numbers(random: Random) -> Turn:
    numbers = random.sample(range(100), random.randint(2, 4))
    order = " ".join(str(number) for number in sorted(numbers))
    question = f"Sort: {' '.join(str(number) for number in numbers)}"
    return turn(
        question, order, f"smallest {min(numbers)}", f"The smallest is {min(numbers)}, the biggest {max(numbers)}."
    )


def story(random: Random) -> Turn:
    name, thing = random.choice(NAMES), random.choice(THINGS)
    first, second = random.randint(2, 9), random.randint(1, 9)
    if random.random() < 0.5:
        question = f"{name} has {first} of {thing} and gets {second} more. How many now?"
        return turn(
            question,
            str(first + second),
            f"{first}+{second}={first + second}",
            f"{name} gets more: {first}+{second}={first + second}.",
        )
    first += second
    question = f"{name} has {first} of {thing} and loses {second}. How many now?"
    return turn(
        question,
        str(first - second),
        f"{first}-{second}={first - second}",
        f"{name} loses some: {first}-{second}={first - second}.",
    )
