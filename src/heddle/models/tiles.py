"""Products of a few rows with a few vectors of weights, all sums in registers: LLVM's own language, for numba."""

from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

LANES = 16
"""Outputs of one vector."""
PANEL = 64
"""Outputs whose weights lie together: four vectors."""
TILE_ROWS = 6
"""Rows of one tile: with four vectors of outputs each they fill the registers."""
FEATURES = llvm.get_host_cpu_features()
HAS_BFLOAT16 = bool(FEATURES.get("avx512bf16"))
HAS_INT8 = bool(FEATURES.get("avx512vnni"))

llvm.initialize_native_asmparser()

FLOATS = ir.VectorType(ir.FloatType(), LANES)
INTS = ir.VectorType(ir.IntType(32), LANES)
SHORTS = ir.VectorType(ir.IntType(16), LANES)
BYTES = ir.IntType(64)


def emit_load(builder: Any, address: Any, kind: Any) -> Any:
    """A load from an address of any alignment."""
    load = builder.load(builder.inttoptr(address, kind.as_pointer()))
    load.align = 1
    return load


def emit_broadcast(builder: Any, value: Any, kind: Any) -> Any:
    """A vector of one value."""
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), ir.Constant(INTS, [0] * LANES))


def emit_weights(builder: Any, address: Any, dtype: Any) -> Any:
    """A vector of weights, as the multiplication wants it."""
    if dtype == types.int16:
        wide = builder.zext(emit_load(builder, address, SHORTS), INTS)
        return builder.bitcast(builder.shl(wide, ir.Constant(INTS, [16] * LANES)), FLOATS)
    return emit_load(builder, address, FLOATS if dtype == types.float32 else INTS)


def emit_multiply(builder: Any, total: Any, row: Any, weights: Any, dtype: Any) -> Any:
    """total + row * weights, for as many inputs as four bytes of a row hold."""
    if dtype == types.int8 or (dtype == types.uint16 and HAS_BFLOAT16):
        name = "vpdpbusd" if dtype == types.int8 else "vdpbf16ps"
        signature = ir.FunctionType(total.type, [total.type, INTS, INTS])
        return builder.call(ir.InlineAsm(signature, f"{name} $3, $2, $0", "=v,0,v,v"), [total, row, weights])
    name = f"llvm.fma.v{LANES}f32"
    known = builder.module.globals.get(name)
    fused = known or ir.Function(builder.module, ir.FunctionType(FLOATS, [FLOATS] * 3), name)
    if dtype != types.uint16:
        return builder.call(fused, [row, weights, total])
    sixteen, upper = (ir.Constant(INTS, [bits] * LANES) for bits in (16, -65536))
    for factors in (
        [builder.shl(row, sixteen), builder.shl(weights, sixteen)],
        [builder.and_(row, upper), builder.and_(weights, upper)],
    ):
        total = builder.call(fused, [*(builder.bitcast(factor, FLOATS) for factor in factors), total])
    return total


@intrinsic
def multiply_tile(
    typing: Any,
    weights: Any,
    rows: Any,
    columns: Any,
    row: Any,
    row_stride: Any,
    weight: Any,
    step_stride: Any,
    column_stride: Any,
    steps: Any,
    out: Any,
    out_stride: Any,
) -> Any:
    """Sums of products of up to 6 rows with up to 4 vectors of outputs; addresses and strides in bytes.

    Each step takes four bytes of every row. `weights` only tells the type. Sums are float32, int32 for int8.
    """
    dtype = weights.dtype
    signature = types.void(weights, *[types.int64] * 10)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, rows, columns, row, row_stride, weight, step_stride, column_stride, steps, out, out_stride = arguments
        end = builder.append_basic_block("end")
        number = builder.add(builder.mul(rows, ir.Constant(BYTES, 8)), columns)
        choice = builder.switch(number, end)
        for height in range(1, TILE_ROWS + 1):
            for width in range(1, PANEL // LANES + 1):
                block = builder.append_basic_block(f"tile{height}x{width}")
                choice.add_case(ir.Constant(BYTES, 8 * height + width), block)
                builder.position_at_end(block)
                places = (row, row_stride, weight, step_stride, column_stride, steps, out, out_stride)
                emit_tile(builder, dtype, height, width, *places)
                builder.branch(end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    return signature, generate


def emit_tile(
    builder: Any,
    dtype: Any,
    height: int,
    width: int,
    row: Any,
    row_stride: Any,
    weight: Any,
    step_stride: Any,
    column_stride: Any,
    steps: Any,
    out: Any,
    out_stride: Any,
) -> None:
    """The loop over the inputs of a tile with all its sums in registers."""
    kind, scalar = (INTS, ir.IntType(32)) if dtype == types.int8 else (FLOATS, ir.FloatType())
    row_scalar = ir.IntType(32) if dtype in (types.int8, types.uint16) else ir.FloatType()
    row_kind = ir.VectorType(row_scalar, LANES)
    rows = [builder.add(row, builder.mul(row_stride, ir.Constant(BYTES, index))) for index in range(height)]
    columns = [builder.add(weight, builder.mul(column_stride, ir.Constant(BYTES, index))) for index in range(width)]
    before = builder.block
    loop, done = builder.append_basic_block("steps"), builder.append_basic_block("sums")
    builder.branch(loop)
    builder.position_at_end(loop)
    step, offset = builder.phi(BYTES), builder.phi(BYTES)
    zero = ir.Constant(kind, [ir.Constant(scalar, 0)] * LANES)
    sums = [[builder.phi(kind) for _ in columns] for _ in rows]
    for phi, start in [(step, ir.Constant(BYTES, 0)), (offset, ir.Constant(BYTES, 0))]:
        phi.add_incoming(start, before)
    vectors = [emit_weights(builder, builder.add(column, offset), dtype) for column in columns]
    place = builder.mul(step, ir.Constant(BYTES, 4))
    for address, line in zip(rows, sums, strict=True):
        value = emit_broadcast(builder, emit_load(builder, builder.add(address, place), row_scalar), row_kind)
        for index, phi in enumerate(line):
            total = emit_multiply(builder, phi, value, vectors[index], dtype)
            phi.add_incoming(zero, before)
            phi.add_incoming(total, loop)
            line[index] = total
    following = builder.add(step, ir.Constant(BYTES, 1))
    step.add_incoming(following, loop)
    offset.add_incoming(builder.add(offset, step_stride), loop)
    builder.cbranch(builder.icmp_signed("<", following, steps), loop, done)
    builder.position_at_end(done)
    for index, line in enumerate(sums):
        for column, total in enumerate(line):
            stride = builder.mul(out_stride, ir.Constant(BYTES, index))
            target = builder.add(builder.add(out, stride), ir.Constant(BYTES, 4 * LANES * column))
            builder.store(total, builder.inttoptr(target, kind.as_pointer())).align = 1


@intrinsic
def pointer_to(typing: Any, like: Any, address: Any) -> Any:
    """The address as a pointer to what an array holds."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[1], context.get_value_type(signature.return_type))

    return types.CPointer(like.dtype)(like, types.int64), generate


@intrinsic
def fuse(typing: Any, left: Any, right: Any, total: Any) -> Any:
    """left * right + total in float32, rounded once."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return types.float32(types.float32, types.float32, types.float32), generate


def emit_masked_load(builder: Any, address: Any, count: Any) -> Any:
    """A vector from an address of any alignment; lanes from `count` on are 0 and not read."""
    limit = emit_broadcast(builder, builder.trunc(count, ir.IntType(32)), INTS)
    mask = builder.icmp_signed("<", ir.Constant(INTS, list(range(LANES))), limit)
    name = f"llvm.masked.load.v{LANES}f32.p0"
    arguments = [FLOATS.as_pointer(), ir.IntType(32), mask.type, FLOATS]
    load = builder.module.globals.get(name) or ir.Function(builder.module, ir.FunctionType(FLOATS, arguments), name)
    zeros = ir.Constant(FLOATS, [0.0] * LANES)
    return builder.call(load, [builder.inttoptr(address, FLOATS.as_pointer()), ir.IntType(32)(1), mask, zeros])


def emit_sum(builder: Any, address: Any, count: Any, square: bool) -> Any:
    """The sum of numbers, or of their squares: number n into lane n modulo 64, then halves of lanes together."""
    before, loop = builder.block, builder.append_basic_block("sum")
    done = builder.append_basic_block("lanes")
    zeros = ir.Constant(FLOATS, [0.0] * LANES)
    builder.cbranch(builder.icmp_signed(">", count, BYTES(0)), loop, done)
    builder.position_at_end(loop)
    first = builder.phi(BYTES)
    lanes = [builder.phi(FLOATS) for _ in range(PANEL // LANES)]
    totals = []
    for index, lane in enumerate(lanes):
        place = builder.add(first, BYTES(LANES * index))
        numbers = emit_masked_load(
            builder, builder.add(address, builder.mul(place, BYTES(4))), builder.sub(count, place)
        )
        added = emit_multiply(builder, lane, numbers, numbers, types.float32) if square else builder.fadd(lane, numbers)
        totals.append(added)
    following = builder.add(first, BYTES(PANEL))
    for phi, start, value in zip([first, *lanes], [BYTES(0), *[zeros] * len(lanes)], [following, *totals], strict=True):
        phi.add_incoming(start, before)
        phi.add_incoming(value, loop)
    builder.cbranch(builder.icmp_signed("<", following, count), loop, done)
    builder.position_at_end(done)
    sums = [builder.phi(FLOATS) for _ in lanes]
    for phi, value in zip(sums, totals, strict=True):
        phi.add_incoming(zeros, before)
        phi.add_incoming(value, loop)
    while len(sums) > 1:
        half = len(sums) // 2
        sums = [builder.fadd(left, right) for left, right in zip(sums[:half], sums[half:], strict=True)]
    total, width = sums[0], LANES
    while width > 1:
        width //= 2
        turned = ir.Constant(INTS, [(lane + width) % LANES for lane in range(LANES)])
        total = builder.fadd(total, builder.shuffle_vector(total, total, turned))
    return builder.extract_element(total, ir.IntType(32)(0))


@intrinsic
def add_numbers(typing: Any, address: Any, count: Any) -> Any:
    """The sum of float32 numbers that lie one behind the other, in an order that depends on their count alone."""
    signature = types.float32(types.int64, types.int64)
    return signature, lambda context, builder, signature, place: emit_sum(builder, place[0], place[1], False)


@intrinsic
def add_squares(typing: Any, address: Any, count: Any) -> Any:
    """The sum of the squares of float32 numbers, as `add_numbers`."""
    signature = types.float32(types.int64, types.int64)
    return signature, lambda context, builder, signature, place: emit_sum(builder, place[0], place[1], True)


@intrinsic
def as_float(typing: Any, bits: Any) -> Any:
    """The float32 with these 32 bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), generate


@intrinsic
def as_bits(typing: Any, number: Any) -> Any:
    """The 32 bits of a float32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.int32(types.float32), generate
