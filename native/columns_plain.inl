// A column as plain words, for the variants without vector instructions for columns. Included inside their namespace.
struct Bits {
    std::uint64_t words[ROWS / 64];
};

template <class Operation>
inline Bits by_word(Operation operation) {
    Bits out;
    for (int w = 0; w < ROWS / 64; ++w) out.words[w] = operation(w);
    return out;
}
inline Bits load_bits(const Column& column) {
    return by_word([&](int w) { return column.words[w]; });
}
inline void store_bits(Column& column, const Bits& a) {
    for (int w = 0; w < ROWS / 64; ++w) column.words[w] = a.words[w];
}
inline Bits none() { return {}; }
inline Bits both(const Bits& a, const Bits& b) {
    return by_word([&](int w) { return a.words[w] & b.words[w]; });
}
inline Bits either_one(const Bits& a, const Bits& b) {
    return by_word([&](int w) { return a.words[w] ^ b.words[w]; });
}
inline Bits sum_of(const Bits& a, const Bits& b, const Bits& c) {
    return by_word([&](int w) { return a.words[w] ^ b.words[w] ^ c.words[w]; });
}
inline Bits carry_of(const Bits& a, const Bits& b, const Bits& c) {
    return by_word([&](int w) { return (a.words[w] & b.words[w]) | ((a.words[w] ^ b.words[w]) & c.words[w]); });
}

inline Bits plus(const Bits& a, const Bits& b) {
    std::uint8_t x[sizeof(Bits)], y[sizeof(Bits)];
    std::memcpy(x, &a, sizeof(x));
    std::memcpy(y, &b, sizeof(y));
    for (std::size_t i = 0; i < sizeof(x); ++i) x[i] = static_cast<std::uint8_t>(x[i] + y[i]);
    Bits out;
    std::memcpy(&out, x, sizeof(x));
    return out;
}

// of[b]: the eight bits of b as eight bytes, 0 or 1, the lowest bit first in memory.
struct BytesOfBits {
    std::uint64_t of[256] = {};

    constexpr BytesOfBits() {
        for (int b = 0; b < 256; ++b) {
            for (int i = 0; i < 8; ++i) {
                const int byte = std::endian::native == std::endian::little ? i : 7 - i;
                of[b] |= static_cast<std::uint64_t>(b >> i & 1) << 8 * byte;
            }
        }
    }
};
constexpr BytesOfBits BYTES_OF_BITS;

inline void expand(const Column* digits, int count, std::uint8_t* bytes) {
    for (int w = 0; w < ROWS / 8; ++w) {
        std::uint64_t total = 0;
        for (int k = 0; k < count; ++k) total += BYTES_OF_BITS.of[digits[k].words[w / 8] >> (w % 8 * 8) & 255] << k;
        std::memcpy(bytes + 8 * w, &total, 8);
    }
}

inline void spread(const Column* columns, std::size_t items, const std::uint16_t* rows, Column* few) {
    for (int i = 0; i < FEW_ROWS; ++i) {
        if (rows[i] >= ROWS) continue;
        const int word = rows[i] / 64, bit = rows[i] % 64;
        std::uint8_t* out = reinterpret_cast<std::uint8_t*>(few) + i;
        for (std::size_t item = 0; item < items; ++item) {
            out[item * sizeof(Column)] = static_cast<std::uint8_t>(columns[item].words[word] >> bit & 1);
        }
    }
}
