/* SPDX-License-Identifier: Apache-2.0 */
/* Which PyTorch this is; failures of the library as exceptions; and the line
 * of the Python program that a call is on. */
#ifndef OARSONG_TORCH_SITE_H
#define OARSONG_TORCH_SITE_H

#include <regex>

#include <torch/extension.h>
#include <torch/version.h>
#if TORCH_VERSION_MAJOR >= 2
#include <torch/csrc/distributed/c10d/Backend.hpp>
#else
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#endif
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <set>
#include <string>
#include <unordered_map>

#include <oarsong/oarsong.h>

#define TORCH_AT_LEAST(major, minor)  \
    (TORCH_VERSION_MAJOR > (major) || \
     (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

namespace oarsong
{

#if TORCH_VERSION_MAJOR >= 2
using Base = c10d::Backend;
template <class T> using optional = std::optional<T>;
#else
using Base = c10d::ProcessGroup;
template <class T> using optional = c10::optional<T>;
#endif
using Tensors = std::vector<at::Tensor>;
using c10d::OpType;

constexpr auto unset = std::chrono::milliseconds(-1);

/* ---- failures ------------------------------------------------------------ */

/* Programs that wait for "Timed out", as gloo says, find it. The line of the
 * call is in it too. */
inline std::string failure_text(const oar_error &error,
                                const std::string &site = "")
{
    bool late = error.status == OAR_E_TIMEOUT;
    std::string text = error.text;
    std::string where = error.site[0] != 0 ? error.site : site;

    if (late)
        text = "Timed out (" + text + ")";
    if (!where.empty() && text.find(where) == std::string::npos)
        text += " (in a call at " + where + ")";
    return std::string(oar_status_name(error.status)) + ": " + text;
}

inline void check(oar_status status)
{
    if (status != OAR_OK)
        throw std::runtime_error(failure_text(*oar_last_error()));
}

/* Adds what gloo says of a monitored barrier that failed, for programs that
 * look for it. all: every missing rank, else the first. The library's text
 * names them: "2 of 4 ranks missing: 1 (dead), 2 (running)". */
inline std::string monitored_text(const std::string &text, int rank, bool all,
                                  int64_t waited_ms)
{
    static const std::regex missing("[:,] ([0-9]+) [(]");
    std::string mine = text + ". Rank " + std::to_string(rank), ranks;

    if (rank != 0)
        return mine +
               " successfully reached monitoredBarrier, but received errors "
               "while waiting for send/recv from rank 0";
    if (waited_ms == 0)
        return mine + " timed out in monitoredBarrier";
    for (std::sregex_iterator at(text.begin(), text.end(), missing), end;
         at != end && (all || ranks.empty()); at++)
        ranks += (ranks.empty() ? "" : ", ") + (*at)[1].str();
    if (ranks.empty())
        return text;
    return text + (all ? ". Ranks " : ". Rank ") + ranks +
           " failed to pass monitoredBarrier in " + std::to_string(waited_ms) +
           " ms";
}

/* ---- where the call is in the Python program ----------------------------- */

struct Site {
    const char *file = nullptr; /* it lives as long as the process */
    int line = 0;

    /* "train.py:40", as the library writes it. */
    std::string text() const
    {
        if (file == nullptr)
            return "";
        std::string path = file;
        return path.substr(path.rfind('/') + 1) + ":" + std::to_string(line);
    }
};

/* Returns whether a module is PyTorch's own, or this package's. */
inline bool inside(const std::string &module)
{
    std::string package = module.substr(0, module.find('.'));

    return package == "torch" || package == "oarsong" ||
           package == "contextlib";
}

/* Returns the text for as long as the process lives. The interpreter's lock
 * guards it. */
inline const char *keep_text(const std::string &text)
{
    static auto *texts = new std::set<std::string>;

    return texts->insert(text).first->c_str();
}

/* Files of code that was seen, which is held. The interpreter's lock guards it.
 */
using Known_code = std::unordered_map<PyObject *, const char *>;

/* Looks at a frame's piece of code, which was not seen before. */
inline const char *learn_file(PyFrameObject *frame, PyObject *code,
                              Known_code &known)
{
    constexpr size_t most = 4096; /* programs may make code as they run */
    py::handle of_frame(reinterpret_cast<PyObject *>(frame));
    py::object module =
        of_frame.attr("f_globals").attr("get")("__name__", py::str());
    const char *kept = inside(py::cast<std::string>(py::str(module)))
                           ? nullptr
                           : keep_text(py::cast<std::string>(
                                 py::handle(code).attr("co_filename")));

    if (known.size() >= most) {
        Known_code old;

        old.swap(known);
        for (auto &entry : old)
            Py_DECREF(entry.first);
    }
    Py_INCREF(code);
    known.emplace(code, kept);
    return kept;
}

/* Returns the file of a frame's code; nullptr: PyTorch's, or ours. */
inline const char *file_of(PyFrameObject *frame)
{
    static auto *known = new Known_code;
    py::object code = py::reinterpret_steal<py::object>(
        reinterpret_cast<PyObject *>(PyFrame_GetCode(frame)));
    auto found = known->find(code.ptr());

    return found != known->end() ? found->second
                                 : learn_file(frame, code.ptr(), *known);
}

/* Finds the line of the thread that this one works for: the line of
 * loss.backward(), whose operations autograd's threads start. */
inline Site site_elsewhere()
{
    Site site;

    try {
        py::tuple found =
            py::module::import("oarsong._lib").attr("elsewhere")();
        if (!found[0].is_none()) {
            site.file = keep_text(found[0].cast<std::string>());
            site.line = found[1].cast<int>();
        }
    } catch (const py::error_already_set &) {
        /* the interpreter ends: there is no line */
    }
    return site;
}

/* Finds the first frame outside of PyTorch. A thread without Python's frames,
 * as autograd's are, has the line of another one. */
inline Site site_of_caller()
{
    Site site;

    if (!Py_IsInitialized())
        return site;
    py::gil_scoped_acquire gil;
    PyFrameObject *frame = PyEval_GetFrame();
    Py_XINCREF(frame);
    while (frame != nullptr && site.file == nullptr) {
        PyFrameObject *back = nullptr;

        site.file = file_of(frame);
        if (site.file != nullptr)
            site.line = PyFrame_GetLineNumber(frame);
        else
            back = PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = back;
    }
    return site.file != nullptr ? site : site_elsewhere();
}

} // namespace oarsong

#endif
