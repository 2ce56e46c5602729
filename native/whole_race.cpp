#include "whole_race.hpp"

#include <algorithm>

namespace mbrace {

void WholeRace::run(const RacePlan& plan, Worker& worker) {
    std::vector<Text> fresh;
    Vector<float> scores;
    for (const std::size_t size : plan.sizes) {
        const std::size_t before = tally->draws(), end = std::min(size, listed), alive = tally->alive().size();
        if (alive <= (steps.empty() ? 1 : plan.enough) || end <= before) return;
        fresh.clear();
        for (std::size_t at = before; at < end; ++at) {
            if (!tally->draw(drawn[at])) continue;
            fresh.push_back(scored[at]);
            first_drawn.push_back(at);
        }
        if (!fresh.empty()) {
            scores.resize(alive * fresh.size());
            const Ask ask{index, tally->alive().data(), alive, fresh.data(), fresh.size(), scores.data()};
            worker.ask = nullptr;  // the last one may have been at the same address
            score_references(worker, ask, 0, fresh.size(), plan.formula, *plan.variant);
            tally->add(scores.data(), fresh.size());
        }
        const Clock::time_point scored_all = Clock::now();
        const auto found = plan.resamples.find(end);
        const Resamples* resamples = found == plan.resamples.end() ? nullptr : found->second;
        means = tally->decide(resamples, nullptr, plan.nbest, plan.max_losing_wins, plan.max_regret);
        deciding += Clock::now() - scored_all;
        steps.push_back({end, tally->alive().size(), alive * (end - before), alive * fresh.size()});
    }
}

}  // namespace mbrace
