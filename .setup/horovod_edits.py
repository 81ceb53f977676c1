"""What is changed in Horovod's source release before it is built: by file, pairs of old and new text.

Each old text is there exactly once. Some let it compile with today's torch, or sooner; some keep its threads from
taking the cores that ranks compute on; one has it listen only where it was told to.
"""

__all__ = ["EDITS"]

ALL_OF_TORCH = "#include <torch/extension.h>\n#include <torch/torch.h>\n"
TENSORS = "#include <torch/csrc/utils/pybind.h>\n#include <torch/types.h>\n"

EDITS: dict[str, list[tuple[str, str]]] = {
    # torch's headers need C++20 where the release asks for 14, and Gloo must be compiled alike.
    "CMakeLists.txt": [
        ("set(CMAKE_CXX_STANDARD 14)", "set(CMAKE_CXX_STANDARD 20)"),
        ('"set(CMAKE_CXX_STANDARD 17)\\n"', '"set(CMAKE_CXX_STANDARD 20)\\n"'),
        # Compiling several files as one reads headers less often: a third of Gloo's time, three quarters of the rest.
        (
            "    add_subdirectory(third_party/gloo)\n",
            "    set(CMAKE_UNITY_BUILD ON)\n    add_subdirectory(third_party/gloo)\n",
        ),
    ],
    # A class of other files has this name.
    "third_party/gloo/gloo/allreduce.cc": [
        ("using ReductionFunction = ", "using AllreduceFunction = "),
        ("    ReductionFunction fn) {", "    AllreduceFunction fn) {"),
    ],
    "horovod/torch/CMakeLists.txt": [
        ("set(CMAKE_CXX_STANDARD 14)", "set(CMAKE_CXX_STANDARD 20)"),
        # What reads torch's headers takes longest. It begins at once, where a library would wait until Gloo is linked.
        (
            "add_library(${PYTORCH_TARGET_LIB} SHARED ${SOURCES} ${PYTORCH_SOURCES})\n",
            "add_library(horovod_binding OBJECT ${PYTORCH_SOURCES})\n"
            "add_library(horovod_core OBJECT ${SOURCES})\n"
            "foreach(part horovod_binding horovod_core)\n"
            "    set_target_properties(${part} PROPERTIES POSITION_INDEPENDENT_CODE ON)\n"
            '    target_include_directories(${part} PRIVATE "${EIGEN_INCLUDE_PATH}" "${FLATBUFFERS_INCLUDE_PATH}")\n'
            "endforeach()\n"
            "add_library(${PYTORCH_TARGET_LIB} SHARED\n"
            "    $<TARGET_OBJECTS:horovod_binding> $<TARGET_OBJECTS:horovod_core>)\n",
        ),
    ],
    # The whole of torch's C++ interface takes twice as long to read as what is used of it.
    "horovod/torch/adapter_v2.h": [(ALL_OF_TORCH, TENSORS)],
    "horovod/torch/mpi_ops_v2.cc": [
        (ALL_OF_TORCH, TENSORS),
        # Waiting for a result kept a core busy: the one that the result was to be computed on.
        ("std::this_thread::yield();", "handle_manager.Wait(handle);"),
    ],
    # Whatever HOROVOD_GLOO_IFACE said, gradients took the interface that the host's name stands for: a public one,
    # maybe, or none that others can reach (127.0.1.1, as many hosts call themselves).
    "horovod/common/gloo/gloo_context.cc": [
        (
            "  assert(global_context.IsEnabled());\n",
            "  assert(global_context.IsEnabled());\n  gloo_iface_ = global_context.gloo_iface_;\n",
        ),
    ],
    # The background thread asks all ranks every millisecond whether there is something to reduce, which takes up to a
    # third of a core from the computation. Here it sleeps until this rank asks for something (0.1 s at most, for what
    # only the others know of), and takes its turn at once: gradients come in buckets, so that there is nothing to be
    # gained by waiting for more to send together.
    "horovod/common/tensor_queue.h": [
        ("#include <iostream>\n", "#include <chrono>\n#include <condition_variable>\n#include <iostream>\n"),
        (
            "  void RemoveJoinTensor();\n",
            "  void RemoveJoinTensor();\n\n"
            "  // Between a process's threads: there is a request in some queue, or the end of the process's run.\n"
            "  static void Wake();\n"
            "  static void AwaitWake(std::chrono::milliseconds at_most);\n",
        ),
    ],
    "horovod/common/tensor_queue.cc": [
        (
            "namespace common {\n",
            "namespace common {\n\n"
            "namespace {\n"
            "std::mutex wake_mutex;\n"
            "std::condition_variable wake_condition;\n"
            "bool awake = false;\n"
            "} // namespace\n\n"
            "void TensorQueue::Wake() {\n"
            "  {\n"
            "    std::lock_guard<std::mutex> guard(wake_mutex);\n"
            "    awake = true;\n"
            "  }\n"
            "  wake_condition.notify_one();\n"
            "}\n\n"
            "void TensorQueue::AwaitWake(std::chrono::milliseconds at_most) {\n"
            "  std::unique_lock<std::mutex> lock(wake_mutex);\n"
            "  wake_condition.wait_for(lock, at_most, [] { return awake; });\n"
            "  awake = false;\n"
            "}\n\n",
        ),
        (
            "  message_queue_.push(std::move(message));\n  return Status::OK();\n",
            "  message_queue_.push(std::move(message));\n  Wake();\n  return Status::OK();\n",
        ),
        (
            "    message_queue_.push(std::move(messages[i]));\n  }\n",
            "    message_queue_.push(std::move(messages[i]));\n  }\n  Wake();\n",
        ),
        (
            "  std::lock_guard<std::mutex> guard(mutex_);\n  message_queue_.push(std::move(message));\n}\n",
            "  std::lock_guard<std::mutex> guard(mutex_);\n  message_queue_.push(std::move(message));\n  Wake();\n}\n",
        ),
        ("    messages.pop_front();\n  }\n}\n", "    messages.pop_front();\n  }\n  Wake();\n}\n"),
    ],
    "horovod/common/operations.cc": [
        ("  state.parameter_manager.SetCycleTimeMs(1);\n", "  state.parameter_manager.SetCycleTimeMs(0.2);\n"),
        (
            "bool RunLoopOnce(HorovodGlobalState& state) {\n",
            "bool RunLoopOnce(HorovodGlobalState& state) {\n"
            "  if (!state.process_set_table.Get(0).joined) {\n"
            "    TensorQueue::AwaitWake(std::chrono::milliseconds(100));\n"
            "  }\n",
        ),
        (
            "    horovod_global.shut_down = true;\n",
            "    horovod_global.shut_down = true;\n    TensorQueue::Wake();\n",
        ),
    ],
    "horovod/torch/handle_manager.h": [
        ("#include <atomic>\n", "#include <atomic>\n#include <condition_variable>\n"),
        ("  bool PollHandle(int handle);\n", "  bool PollHandle(int handle);\n\n  void Wait(int handle);\n"),
        ("  std::mutex mutex_;\n", "  std::mutex mutex_;\n  std::condition_variable done_;\n"),
    ],
    "horovod/torch/handle_manager.cc": [
        (
            "  results_[handle] = std::make_shared<Status>(status);\n}\n",
            "  results_[handle] = std::make_shared<Status>(status);\n"
            "  done_.notify_all();\n"
            "}\n\n"
            "void HandleManager::Wait(int handle) {\n"
            "  std::unique_lock<std::mutex> lock(mutex_);\n"
            "  done_.wait(lock, [&] {\n"
            "    auto found = results_.find(handle);\n"
            "    return found == results_.end() || found->second != nullptr;\n"
            "  });\n"
            "}\n",
        ),
        ("  results_.clear();\n", "  results_.clear();\n  done_.notify_all();\n"),
    ],
    # Debug symbols take a third of the time and 60 MB that nobody looks at.
    "setup.py": [("'RelWithDebInfo'", "'Release'")],
}
