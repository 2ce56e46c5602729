// Work shared out over threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

namespace mbrace {

struct StartThread {
    template <class Run>
    std::thread operator()(const Run& run, int worker) const {
        return std::thread(run, worker);
    }
};

// Calls work(worker, task) for every task, with `worker` below `threads`. Threads are started for the call and joined
// before it returns, so a fork finds none. If a thread cannot be started, those that were started do all the work.
// `start` is replaced only in stress.cpp.
template <class Work, class Start = StartThread>
void parallel(std::size_t tasks, int threads, Work work, Start start = {}) {
    const int workers = static_cast<int>(std::min<std::size_t>(std::max(threads, 1), std::max<std::size_t>(tasks, 1)));
    std::atomic<std::size_t> next{0};
    std::exception_ptr failure;
    std::mutex failing;
    auto run = [&](int worker) {
        try {
            for (std::size_t task; (task = next.fetch_add(1)) < tasks;) work(worker, task);
        } catch (...) {
            const std::lock_guard<std::mutex> lock(failing);
            failure = std::current_exception();
            next = tasks;
        }
    };
    std::vector<std::thread> others;
    others.reserve(workers - 1);  // so that adding a thread cannot fail
    try {
        for (int worker = 1; worker < workers; ++worker) others.push_back(start(run, worker));
    } catch (const std::system_error&) {  // the system has no more threads
    } catch (const std::bad_alloc&) {     // or no memory for one
    }
    run(0);
    for (std::thread& other : others) other.join();
    if (failure) std::rethrow_exception(failure);
}

}  // namespace mbrace
