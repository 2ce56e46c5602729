// The body shared by all instruction sets; the including file defines, in an unnamed namespace,
//   Floats  eight floats: set1, load, store, widen (from bytes), and + * / min max as functions
//   Bits    a column: load_bits, store_bits, none(); sum_of(a, b, c) = a ^ b ^ c, carry_of(a, b, c) = their majority,
//           and both(a, b), either_one(a, b), plus(a, b) = a & b, a ^ b, and a + b byte by byte
//   expand  turns counts of up to eight bits, bit k of each in column k, into 256 bytes
// Every variant does the same float operations in the same order, without fused ones: the scores are equal to the bit.

constexpr std::uint32_t MAX_BYTE_ITEMS = 240;  // so few items that their count fits a byte; a multiple of ITEM_PADDING

// Counts, for each hypothesis, how many of the items it has. Columns are added up as binary numbers, 256 side by side:
// column k of `digits` has bit k of every count. A full adder turns three columns of a digit into one of this digit and one
// of the next. Returns the number of digits. `Checked`: items from `known` on have no column in this block.
template <bool Checked>
static int add_up(const Column* columns, std::uint32_t known, const std::uint32_t* items, std::uint32_t count,
                  Column* digits) {
    auto column = [&](std::uint32_t item) {
        if constexpr (Checked) item = item < known ? item : 0;
        return load_bits(columns[item]);
    };
    auto adder = [](Bits& digit, Bits a, Bits b) {
        const Bits carry = carry_of(digit, a, b);
        digit = sum_of(digit, a, b);
        return carry;
    };
    Bits ones = none(), twos = none(), fours = none(), eights = none();
    Bits more[4] = {none(), none(), none(), none()};
    int digits_of_more = 0;
    while (digits_of_more < 4 && count >> (4 + digits_of_more)) ++digits_of_more;
    for (std::uint32_t i = 0; i < count; i += ITEM_PADDING, items += ITEM_PADDING) {
        Bits eight[2];
        for (int half = 0; half < 2; ++half) {
            const std::uint32_t* eight_items = items + 8 * half;
            const Bits a = adder(ones, column(eight_items[0]), column(eight_items[1]));
            const Bits b = adder(ones, column(eight_items[2]), column(eight_items[3]));
            const Bits c = adder(twos, a, b);
            const Bits d = adder(ones, column(eight_items[4]), column(eight_items[5]));
            const Bits e = adder(ones, column(eight_items[6]), column(eight_items[7]));
            eight[half] = adder(fours, c, adder(twos, d, e));
        }
        Bits carry = adder(eights, eight[0], eight[1]);
        for (int k = 0; k < digits_of_more; ++k) {
            const Bits next = both(more[k], carry);
            more[k] = either_one(more[k], carry);
            carry = next;
        }
    }
    store_bits(digits[0], ones);
    store_bits(digits[1], twos);
    store_bits(digits[2], fours);
    store_bits(digits[3], eights);
    for (int k = 0; k < digits_of_more; ++k) store_bits(digits[4 + k], more[k]);
    return 4 + digits_of_more;
}

template <bool Checked>
static void add_bytes(const Column* columns, std::uint32_t known, const std::uint32_t* items, std::uint32_t count,
                      std::uint8_t* bytes) {
    Bits total[4] = {none(), none(), none(), none()};  // four, so that additions do not wait for each other
    for (std::uint32_t i = 0; i < count; i += 4, items += 4) {
        for (int k = 0; k < 4; ++k) {
            const std::uint32_t item = !Checked || items[k] < known ? items[k] : 0;
            total[k] = plus(total[k], load_bits(columns[item]));
        }
    }
    Column sum;
    store_bits(sum, plus(plus(total[0], total[1]), plus(total[2], total[3])));
    std::memcpy(bytes, &sum, sizeof(sum));
}

// |hypothesis & reference| of one order, for each hypothesis of the block.
template <int Size>
static void count_matches(const Rows& rows, const Reference& reference, int n, float* matches) {
    const Column* columns = rows.columns[n];
    const std::uint32_t *items = reference.items[n], known = rows.items[n], count = reference.counts[n];
    alignas(64) std::uint8_t bytes[Size];
    auto count_checked = [&]<bool Checked>(std::uint32_t first, std::uint32_t some) {
        if constexpr (Size == FEW_ROWS) {
            add_bytes<Checked>(columns, known, items + first, some, bytes);
        } else {
            Column digits[8];
            expand(digits, add_up<Checked>(columns, known, items + first, some, digits), bytes);
        }
    };
    auto count_some = [&](std::uint32_t first, std::uint32_t some) {
        if (reference.largest[n] < known) {
            count_checked.template operator()<false>(first, some);
        } else {
            count_checked.template operator()<true>(first, some);
        }
    };
    if (count <= MAX_BYTE_ITEMS) {
        count_some(0, count);
        for (int row = 0; row < Size; row += LANES) store(matches + row, widen(bytes + row));
        return;
    }
    std::uint32_t totals[Size] = {};
    for (std::uint32_t first = 0; first < count; first += MAX_BYTE_ITEMS) {
        count_some(first, count - first < MAX_BYTE_ITEMS ? count - first : MAX_BYTE_ITEMS);
        for (int row = 0; row < Size; ++row) totals[row] += bytes[row];
    }
    for (int row = 0; row < Size; ++row) matches[row] = static_cast<float>(totals[row]);
}

template <int Size>
static void count_block(const Formula& formula, const Rows& rows, const Reference& reference, std::uint32_t groups,
                        float* scores) {
    const int orders = formula.orders;
    alignas(64) float matches[MAX_ORDERS][Size];
    for (int n = 0; n < orders; ++n) count_matches<Size>(rows, reference, n, matches[n]);
    const Floats on_precision = set1(formula.on_precision), on_recall = set1(formula.on_recall);
    const Floats tiny = set1(1e-30f), hundred = set1(formula.eps_smoothing ? 100.0f / orders : 100.0f);
    const Floats reference_chars = set1(reference.effective[0]), reference_words = set1(reference.effective[1]);
    for (int row = 0; groups != 0; groups >>= 1, row += LANES) {
        if (!(groups & 1)) continue;
        Floats precision = set1(0.0f), recall = set1(0.0f), score;
        if (formula.eps_smoothing) {
            for (int n = 0; n < orders; ++n) {
                const Floats own = load(rows.lengths + n * Size + row), lengths = set1(reference.lengths[n]);
                const Floats bottom = add(mul(on_precision, lengths), mul(on_recall, own));
                precision = add(precision, div(load(matches[n] + row), max(bottom, tiny)));
            }
            score = mul(precision, hundred);
        } else {
            for (int n = 0; n < orders; ++n) {
                const Floats found = load(matches[n] + row);
                precision = add(precision, mul(found, load(rows.inverses + n * Size + row)));
                recall = add(recall, mul(found, set1(reference.inverses[n])));
            }
            const Floats effective = add(min(load(rows.effective + row), reference_chars),
                                         min(load(rows.effective + Size + row), reference_words));
            const Floats bottom = mul(effective, add(mul(on_precision, precision), mul(on_recall, recall)));
            score = div(mul(hundred, mul(precision, recall)), max(bottom, tiny));
        }
        store(scores + row, score);
    }
}
