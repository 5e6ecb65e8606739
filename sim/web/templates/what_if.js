const form = document.querySelector("form");
const answer = document.getElementById("answer");
const status = document.getElementById("status");
const second = document.getElementById("second");
let asked = new AbortController();

const query = () => new URLSearchParams([...new FormData(form)].filter(([, value]) => value.trim()));

function shown() {
  status.textContent = document.getElementById("took")?.textContent ?? "Not simulated";
  return drawIn(answer);
}

// null where there is none.
async function answerTo(asking, signal) {
  try {
    const response = await fetch(`/answer?${asking}`, { signal });
    return response.ok ? await response.text() : null;
  } catch {
    return null;
  }
}

async function simulate() {
  asked.abort();
  asked = new AbortController();
  const { signal } = asked;
  history.replaceState(null, "", `?${query()}`);
  status.textContent = "Simulating\u2026";
  answer.ariaBusy = "true";
  const text = await answerTo(query(), signal);
  if (signal.aborted) return;
  answer.ariaBusy = "false";
  if (text === null) {
    status.textContent = "No answer: is servecast web still running?";
    return;
  }
  answer.innerHTML = text;
  await shown();
}

// The second configuration begins as the first.
form.elements.compare.addEventListener("change", ({ target }) => {
  second.disabled = second.hidden = !target.checked;
  if (!target.checked) return;
  const others = [...second.querySelectorAll("[name]")];
  if (others.some((one) => one.value)) return;
  for (const one of others) one.value = form.elements[one.name.slice(2)].value;
});

form.addEventListener("change", simulate);
form.addEventListener("submit", (event) => {
  event.preventDefault();
  simulate();
});

document.getElementById("share").addEventListener("click", async ({ target }) => {
  await navigator.clipboard.writeText(location.href);
  target.textContent = "Copied";
  setTimeout(() => { target.textContent = "Copy address"; }, 1500);
});

addEventListener("DOMContentLoaded", shown);
