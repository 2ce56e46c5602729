// Threads for ThreadSanitizer (`make tsan`): many threads in one call, and calls side by side, give the bits of one thread,
// without a data race. Also that work is done when threads cannot be started.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "attend.hpp"
#include "bleu.hpp"
#include "forecast.hpp"
#include "likeness.hpp"
#include "parallel.hpp"
#include "pieces.hpp"
#include "resamples.hpp"
#include "score.hpp"
#include "tally.hpp"
#include "word_list.hpp"

using namespace mbrace;

namespace {

void expect(bool held, const char* what, const char* variant) {
    if (held) return;
    std::printf("%s: %s\n", variant, what);
    std::exit(1);
}

std::vector<std::u32string> sentences(std::size_t count, std::mt19937& random) {
    const std::vector<std::u32string> words = {U"a",   U"aa", U"aba",  U"(ab)", U"über",
                                               U"the", U"of", U"Zug.", U"中文", U"😀"};
    std::vector<std::u32string> out(count);
    for (auto& text : out) {
        for (unsigned k = random() % 40; k > 0; --k) text += words[random() % words.size()] + U" ";
    }
    return out;
}

std::vector<Text> views(const std::vector<std::u32string>& texts) {
    std::vector<Text> out;
    for (const auto& text : texts) out.push_back({text.data(), text.size(), 4});
    return out;
}

using Tables = std::vector<std::vector<float>>;

Tables window(const std::vector<std::vector<Text>>& hypotheses, const std::vector<std::vector<Text>>& references,
              const Variant& variant, int threads) {
    const Options options;
    std::vector<const std::vector<Text>*> sentences;
    for (const auto& texts : hypotheses) sentences.push_back(&texts);
    const auto indexes = build_indexes(options, sentences, threads);
    Tables scores(hypotheses.size());
    std::vector<std::vector<std::int64_t>> chosen(hypotheses.size());
    std::vector<Ask> asks;
    for (std::size_t i = 0; i < hypotheses.size(); ++i) {
        for (std::size_t row = 0; row < hypotheses[i].size(); ++row) chosen[i].push_back(static_cast<std::int64_t>(row));
        scores[i].resize(hypotheses[i].size() * references[i].size());
        asks.push_back({indexes[i].get(), chosen[i].data(), chosen[i].size(), references[i].data(), references[i].size(),
                        scores[i].data()});
    }
    score_window(asks, {0.8f, 0.2f, false, options.orders()}, variant, threads);
    return scores;
}

// chrF of whole windows: eight threads in one call, and four calls side by side that share nothing but the reused memory.
void score(std::mt19937& random) {
    std::vector<std::vector<std::u32string>> texts, others;
    std::vector<std::vector<Text>> hypotheses, references;
    for (std::size_t size : {1, 5, 40, 300}) {
        texts.push_back(sentences(size, random));
        others.push_back(sentences(size / 2 + 70, random));
    }
    for (const auto& each : texts) hypotheses.push_back(views(each));
    for (const auto& each : others) references.push_back(views(each));
    const Tables expected = window(hypotheses, references, portable_variant, 1);
    for (const Variant* variant : variants()) {
        expect(window(hypotheses, references, *variant, 8) == expected, "eight threads score unlike one", variant->name);
        std::vector<Tables> found(8);
        parallel(found.size(), 4,
                 [&](int, std::size_t i) { found[i] = window(hypotheses, references, *variant, 1 + i % 2); });
        for (const Tables& each : found) expect(each == expected, "windows side by side score unlike one", variant->name);
    }
}

Tables bleu_window(const std::vector<std::vector<Text>>& hypotheses, const std::vector<std::vector<Text>>& references,
                   int threads) {
    std::vector<BleuIndex> indexes(hypotheses.size(), BleuIndex(Tokenizer::mteval13a, 4));
    std::vector<BleuIndex*> pointers;
    std::vector<const std::vector<Text>*> texts;
    for (BleuIndex& index : indexes) pointers.push_back(&index);
    for (const auto& each : hypotheses) texts.push_back(&each);
    add_hypotheses(pointers, texts, threads);
    Tables scores(hypotheses.size());
    std::vector<std::vector<std::int64_t>> rows(hypotheses.size());
    std::vector<BleuAsk> asks;
    for (std::size_t i = 0; i < hypotheses.size(); ++i) {
        for (std::size_t row = 0; row < hypotheses[i].size(); ++row) rows[i].push_back(static_cast<std::int64_t>(row));
        scores[i].resize(hypotheses[i].size() * references[i].size());
        asks.push_back(
            {&indexes[i], rows[i].data(), rows[i].size(), references[i].data(), references[i].size(), scores[i].data()});
    }
    score_bleu_window(asks, BleuFormula(Smoothing::exponential, 0, true, 4), threads);
    return scores;
}

// BLEU of whole windows: eight threads in one call, and four calls side by side.
void score_bleu(std::mt19937& random) {
    std::vector<std::vector<std::u32string>> texts, others;
    std::vector<std::vector<Text>> hypotheses, references;
    for (std::size_t size : {1, 5, 40, 300}) {
        texts.push_back(sentences(size, random));
        others.push_back(sentences(size / 2 + 70, random));
    }
    for (const auto& each : texts) hypotheses.push_back(views(each));
    for (const auto& each : others) references.push_back(views(each));
    const Tables expected = bleu_window(hypotheses, references, 1);
    expect(bleu_window(hypotheses, references, 8) == expected, "eight threads score unlike one", "BLEU");
    std::vector<Tables> found(8);
    parallel(found.size(), 4, [&](int, std::size_t i) { found[i] = bleu_window(hypotheses, references, 1 + i % 2); });
    for (const Tables& each : found) expect(each == expected, "windows side by side score unlike one", "BLEU");
}

struct Decision {
    std::vector<std::int64_t> alive;
    std::vector<double> means;
    bool operator==(const Decision&) const = default;
};

// A race of three steps over given utilities; resamples are shared by all races. Weighted ones may also stop by regret.
Decision race(const std::vector<Resamples>& resamples, const std::vector<float>& utilities, std::size_t hypotheses,
              std::size_t step, const std::vector<Text>& texts, bool weighted) {
    Tally tally(hypotheses);
    std::vector<double> means;
    for (std::size_t t = 0; t < resamples.size(); ++t) {
        std::vector<float> table;
        for (std::size_t c = t * step; c < (t + 1) * step; ++c) tally.draw(texts[c]);
        for (std::int64_t h : tally.alive()) {
            const float* row = utilities.data() + h * resamples.size() * step + t * step;
            table.insert(table.end(), row, row + step);
        }
        tally.add(table.data(), step);
        const std::vector<double> weights(tally.columns(), 0.1);
        means = tally.decide(&resamples[t], weighted ? weights.data() : nullptr, 2, 3, weighted ? 0.05 : 0.0);
    }
    return {tally.alive(), means};
}

// Races side by side, and wins counted by several threads from the same resamples.
void decide(std::mt19937& random) {
    constexpr std::size_t STEP = 21, STEPS = 3, HYPOTHESES = 70, RACES = 16;
    std::vector<Resamples> resamples;
    for (std::size_t t = 1; t <= STEPS; ++t) resamples.emplace_back(random(), static_cast<std::uint32_t>(t * STEP), 150);
    std::vector<std::u32string> names;
    for (std::size_t c = 0; c < STEP * STEPS; ++c) names.push_back(U"reference " + std::u32string(1, U'0' + c));
    const std::vector<Text> texts = views(names);
    std::vector<std::vector<float>> utilities(RACES, std::vector<float>(HYPOTHESES * STEP * STEPS));
    for (auto& table : utilities) {
        for (float& value : table) value = static_cast<float>(random() % 1000) / 7;
    }
    std::vector<Decision> expected(RACES), found(RACES);
    const auto run = [&](std::vector<Decision>& out) {
        return [&](int, std::size_t i) { out[i] = race(resamples, utilities[i], HYPOTHESES, STEP, texts, i % 2 == 1); };
    };
    parallel(RACES, 1, run(expected));
    parallel(RACES, 8, run(found));
    expect(found == expected, "races side by side decide unlike one by one", "decide");
    expect(expected[0].alive.size() < HYPOTHESES, "no hypothesis was pruned", "decide");

    const std::vector<std::int64_t> counts(STEP * STEPS, 1);
    std::vector<std::vector<std::int64_t>> wins(RACES, std::vector<std::int64_t>(HYPOTHESES));
    parallel(RACES, 8, [&](int, std::size_t i) {
        resamples.back().wins(utilities[0].data(), HYPOTHESES, STEP * STEPS, counts.data(), nullptr, 3, nullptr,
                              wins[i].data(), i % 2 ? WinsVariant::best : WinsVariant::portable);
    });
    for (const auto& each : wins) expect(each == wins[0], "threads or variants count different wins", "wins");
}

// The hypotheses that a forecast lets in, from the start and in three steps, with utilities that depend on them alone;
// then all of them in a covering order.
std::vector<std::int64_t> let_in(const std::vector<Text>& texts) {
    Forecast forecast(texts);
    std::vector<std::int64_t> entered = forecast.start(24);
    for (int step = 0; step < 3 && !entered.empty(); ++step) {
        std::vector<double> means;
        for (const std::int64_t row : entered) means.push_back(static_cast<double>(row * row % 101) / 101);
        for (const std::int64_t row : forecast.next(means.data(), 0.9, 0.001, 16)) entered.push_back(row);
    }
    for (const std::int64_t position : covering_order(texts)) entered.push_back(position);
    return entered;
}

// Forecasts side by side.
void forecast(std::mt19937& random) {
    std::vector<std::vector<std::u32string>> texts;
    for (std::size_t size : {0, 1, 23, 24, 60, 61, 150, 300}) texts.push_back(sentences(size, random));
    std::vector<std::vector<std::int64_t>> expected(texts.size()), found(texts.size());
    parallel(texts.size(), 1, [&](int, std::size_t i) { expected[i] = let_in(views(texts[i])); });
    parallel(texts.size(), 8, [&](int, std::size_t i) { found[i] = let_in(views(texts[i])); });
    expect(found == expected, "forecasts side by side are unlike one by one", "forecast");
    expect(expected.back().size() > 24 + texts.back().size(), "nobody was let in", "forecast");
}

// Words numbered by several threads, and pieces that they read.
void words(std::mt19937& random) {
    WordList one, several;
    for (std::size_t size : {0, 1, 700, 3000}) {
        const std::vector<std::u32string> texts = sentences(size, random);
        std::vector<std::int32_t> expected, found;
        std::vector<std::int64_t> expected_counts, counts;
        one.number(views(texts), 1, expected, expected_counts);
        several.number(views(texts), 8, found, counts);
        expect(found == expected && counts == expected_counts, "eight threads number words otherwise", "words");
    }
    const Pieces pieces({"", " a", "ü", ""}, {-1, -1, -1, 0xC3});
    std::vector<std::string> texts(500);
    const std::int32_t ids[] = {3, 1, 2, -1, 0, 7, 1};
    parallel(texts.size(), 8, [&](int, std::size_t i) { texts[i] = pieces.text(ids, 7); });
    for (const std::string& text : texts) expect(text == "\xEF\xBF\xBD aü a", "pieces make another text", "words");
}

void attend_to_past(std::mt19937& random) {
    constexpr std::size_t ROWS = 150, HEADS = 2, SIZE = 80, TIME = 9, ROOM = TIME + 1, WIDTH = HEADS * SIZE;
    const auto numbers = [&](std::size_t count) {
        std::vector<float> out(count);
        for (float& x : out) x = static_cast<float>(random() % 2001) / 1000 - 1;
        return out;
    };
    const std::vector<float> newest = numbers(ROWS * 3 * WIDTH), past = numbers(ROOM * ROWS * WIDTH);
    std::vector<std::int32_t> row_at(ROOM * ROWS);
    for (std::int32_t& row : row_at) row = static_cast<std::int32_t>(random() % ROWS);
    std::vector<std::vector<float>> seen;
    for (int threads : {1, 8}) {
        std::vector<float> keys = past, values = past, out(ROWS * WIDTH);
        attend({newest.data(), keys.data(), values.data(), row_at.data(), out.data(), ROWS, HEADS, SIZE, TIME, ROWS, ROWS},
               threads);
        seen.push_back(out);
    }
    expect(seen[0] == seen[1], "eight threads see another past", "attention");
}

// Starts so many threads and no more.
struct StartFew {
    mutable int left;

    std::thread operator()(Run run, int worker) const {
        if (left-- == 0) throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
        return std::thread(run, worker);
    }
};

void start_few_threads() {
    for (int few : {0, 1, 3}) {
        std::vector<std::atomic<int>> done(500);
        std::atomic<int> highest{0};
        const auto note = [&](int worker, std::size_t task) {
            ++done[task];
            int seen = highest;
            while (worker > seen && !highest.compare_exchange_weak(seen, worker)) continue;
        };
        parallel(done.size(), 8, note, StartFew{few});
        for (const auto& times : done) expect(times == 1, "a task was left out or done twice", "threads");
        expect(highest <= few, "a worker that was not started worked", "threads");
        const auto fail = [](int, std::size_t task) {
            if (task == 7) throw std::bad_alloc();
        };
        bool thrown = false;
        try {
            parallel(50, 8, fail, StartFew{few});
        } catch (const std::bad_alloc&) {
            thrown = true;
        }
        expect(thrown, "an exception of the work was lost", "threads");
    }
}

}  // namespace

int main() {
    std::mt19937 random(1);
    for (int round = 0; round < 4; ++round) {
        score(random);
        score_bleu(random);
        decide(random);
        forecast(random);
        words(random);
        attend_to_past(random);
    }
    start_few_threads();
    std::printf("scores with");
    for (const Variant* variant : variants()) std::printf(" %s", variant->name);
    std::printf(", BLEU, decisions, wins, forecasts, words and attention: eight threads equal one\n");
    return 0;
}
