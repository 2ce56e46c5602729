// A column as one 256-bit vector, for the variants that have them. Included inside their namespace.
using Bits = __m256i;
inline Bits load_bits(const Column& column) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(&column)); }
inline void store_bits(Column& column, Bits a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(&column), a); }
inline Bits none() { return _mm256_setzero_si256(); }
inline Bits both(Bits a, Bits b) { return _mm256_and_si256(a, b); }
inline Bits either_one(Bits a, Bits b) { return _mm256_xor_si256(a, b); }
inline Bits plus(Bits a, Bits b) { return _mm256_add_epi8(a, b); }

// `from`: the byte, within its 128-bit half of a column, that has a row's bit; `low` and `high`: that bit, in the half that
// has it, and 0 in the other.
inline void spread(const Column* columns, std::size_t items, const std::uint16_t* rows, Column* few) {
    alignas(32) std::uint8_t from[FEW_ROWS], low[FEW_ROWS], high[FEW_ROWS];
    for (int i = 0; i < FEW_ROWS; ++i) {
        const int row = rows[i] % ROWS;
        const std::uint8_t bit = rows[i] < ROWS ? 1u << row % 8 : 0;
        from[i] = static_cast<std::uint8_t>(row / 8 % 16);
        low[i] = row < ROWS / 2 ? bit : 0;
        high[i] = row < ROWS / 2 ? 0 : bit;
    }
    const auto load_all = [](const std::uint8_t* p) { return _mm256_load_si256(reinterpret_cast<const __m256i*>(p)); };
    const __m256i source = load_all(from), in_low = load_all(low), in_high = load_all(high), zero = _mm256_setzero_si256();
    for (std::size_t item = 0; item < items; ++item) {
        const __m256i column = load_bits(columns[item]);
        const __m256i first = _mm256_shuffle_epi8(_mm256_permute2x128_si256(column, column, 0x00), source);
        const __m256i second = _mm256_shuffle_epi8(_mm256_permute2x128_si256(column, column, 0x11), source);
        const __m256i own = _mm256_or_si256(_mm256_and_si256(first, in_low), _mm256_and_si256(second, in_high));
        const __m256i has = _mm256_andnot_si256(_mm256_cmpeq_epi8(own, zero), _mm256_set1_epi8(1));
        store_bits(few[item], _mm256_or_si256(load_bits(few[item]), has));
    }
}
