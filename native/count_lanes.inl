// The body shared by all instruction sets; the including file defines, in an unnamed namespace,
//   Floats           eight floats: set1, load, store, widen (from 16-bit integers), and + * / min max as functions
//   GROUP            how many hypotheses share one pass over the block
//   intersections()  |hypothesis & reference| in the eight lanes, for GROUP hypotheses and one order
// Every variant does the same float operations in the same order, without fused ones: the scores are equal to the bit.

static void count_block(const Formula& formula, const Rows& rows, const Block& block, const std::int64_t* chosen,
                        std::size_t count, float* scores, std::size_t scores_stride) {
    const int orders = formula.orders;
    const Floats on_precision = set1(formula.on_precision), on_recall = set1(formula.on_recall);
    const Floats tiny = set1(1e-30f), hundred = set1(formula.eps_smoothing ? 100.0f / orders : 100.0f);
    const Floats reference_chars = load(block.effective), reference_words = load(block.effective + LANES);
    for (std::size_t first = 0; first < count; first += GROUP) {
        const std::uint64_t* words[GROUP];
        std::int64_t row[GROUP];
        for (int g = 0; g < GROUP; ++g) {
            row[g] = chosen[first + g < count ? first + g : count - 1];
            words[g] = rows.words + static_cast<std::size_t>(row[g]) * rows.stride;
        }
        Floats precision[GROUP], recall[GROUP];
        for (int g = 0; g < GROUP; ++g) precision[g] = recall[g] = set1(0.0f);
        for (int n = 0; n < orders; ++n) {
            Floats matches[GROUP];
            std::uint32_t end = block.begins[n];  // an early hypothesis has nothing in the columns of later ones
            for (int g = 0; g < GROUP; ++g) {
                const std::uint32_t own = block.ranks[rows.ends[row[g] * orders + n]];
                end = own > end ? own : end;
            }
            intersections(block, words, block.begins[n], end, matches);
            if (block.rare != nullptr) {
                for (int g = 0; g < GROUP; ++g) {
                    matches[g] = add(matches[g], widen(block.rare + (row[g] * orders + n) * LANES));
                }
            }
            if (formula.eps_smoothing) {
                const Floats lengths = load(block.lengths + n * LANES);
                for (int g = 0; g < GROUP; ++g) {
                    const Floats own = set1(rows.lengths[row[g] * orders + n]);
                    const Floats bottom = add(mul(on_precision, lengths), mul(on_recall, own));
                    precision[g] = add(precision[g], div(matches[g], max(bottom, tiny)));
                }
            } else {
                const Floats inverses = load(block.inverses + n * LANES);
                for (int g = 0; g < GROUP; ++g) {
                    precision[g] = add(precision[g], mul(matches[g], set1(rows.inverses[row[g] * orders + n])));
                    recall[g] = add(recall[g], mul(matches[g], inverses));
                }
            }
        }
        for (int g = 0; g < GROUP && first + g < count; ++g) {
            Floats score;
            if (formula.eps_smoothing) {
                score = mul(precision[g], hundred);
            } else {
                const Floats effective = add(min(set1(rows.effective[row[g] * 2]), reference_chars),
                                             min(set1(rows.effective[row[g] * 2 + 1]), reference_words));
                const Floats bottom = mul(effective, add(mul(on_precision, precision[g]), mul(on_recall, recall[g])));
                score = div(mul(hundred, mul(precision[g], recall[g])), max(bottom, tiny));
            }
            float* out = scores + (first + g) * scores_stride;
            if (block.lanes == LANES) {
                store(out, score);
            } else {
                float some[LANES];
                store(some, score);
                for (int lane = 0; lane < block.lanes; ++lane) out[lane] = some[lane];
            }
        }
    }
}
