// Waits for threads of the core that no function of the core waits for.
#pragma once

namespace triton {

// Blocks until all other threads of this process sleep, at most a second. A thread that waits for a
// processor counts as running.
void wait_for_running_threads() noexcept;

}  // namespace triton
