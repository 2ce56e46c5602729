// Many threads over one window, and windows side by side, for ThreadSanitizer (`make tsan`): the same bits as one thread,
// and no data race.
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "score.hpp"

using namespace mbrace;

namespace {

std::vector<std::u32string> sentences(std::size_t count, std::mt19937& random) {
    const std::vector<std::u32string> words = {U"a", U"aa", U"aba", U"(ab)", U"über", U"the", U"of", U"Zug.", U"中文", U"😀"};
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

}  // namespace

int main() {
    std::mt19937 random(1);
    for (int round = 0; round < 4; ++round) {
        std::vector<std::vector<std::u32string>> texts, others;
        std::vector<std::vector<Text>> hypotheses, references;
        for (std::size_t size : {1, 5, 40, 300}) {
            texts.push_back(sentences(size, random));
            others.push_back(sentences(size / 2 + 70, random));
        }
        for (const auto& each : texts) hypotheses.push_back(views(each));
        for (const auto& each : others) references.push_back(views(each));
        const Tables alone = window(hypotheses, references, *variants().back(), 1);
        for (const Variant* variant : variants()) {
            if (window(hypotheses, references, *variant, 8) != alone) {
                std::printf("%s: eight threads differ from one\n", variant->name);
                return 1;
            }
            std::vector<Tables> beside(8);
            parallel(beside.size(), 4, [&](int, std::size_t i) { beside[i] = window(hypotheses, references, *variant, 1 + i % 2); });
            for (const Tables& each : beside) {
                if (each != alone) {
                    std::printf("%s: windows side by side differ from one alone\n", variant->name);
                    return 1;
                }
            }
        }
    }
    std::printf("%zu variants: eight threads, and windows side by side, score as one\n", variants().size());
    return 0;
}
