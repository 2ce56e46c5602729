// Work shared out over threads.
#pragma once

#include <cstddef>
#include <thread>

namespace mbrace {

// A reference to a callable, without a copy of it.
template <class Signature>
class Call;

template <class Result, class... Arguments>
class Call<Result(Arguments...)> {
  public:
    template <class Function>
    Call(const Function& function)
        : function_(&function), call_([](const void* of, Arguments... given) -> Result {
              return (*static_cast<const Function*>(of))(given...);
          }) {}
    Result operator()(Arguments... given) const { return call_(function_, given...); }

  private:
    const void* function_;
    Result (*call_)(const void*, Arguments...);
};

using Run = Call<void(int)>;  // what a worker does
using Work = Call<void(int, std::size_t)>;

struct StartThread {
    std::thread operator()(Run run, int worker) const { return std::thread(run, worker); }
};

// Calls work(worker, task) for every task, with `worker` below `threads`. Threads are started for the call and joined
// before it returns, so a fork finds none. If a thread cannot be started, those that were started do all the work.
// `start` is replaced only in stress.cpp.
void parallel(std::size_t tasks, int threads, Work work, Call<std::thread(Run, int)> start = StartThread());

}  // namespace mbrace
