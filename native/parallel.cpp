#include "parallel.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <new>
#include <system_error>
#include <vector>

namespace mbrace {

void parallel(std::size_t tasks, int threads, Work work, Call<std::thread(Run, int)> start) {
    const int workers = static_cast<int>(std::min<std::size_t>(std::max(threads, 1), std::max<std::size_t>(tasks, 1)));
    std::atomic<std::size_t> next{0};
    std::exception_ptr failure;
    std::mutex failing;
    const auto run = [&](int worker) {
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
