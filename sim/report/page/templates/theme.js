// Before anything is drawn: the theme that was chosen, if one was.
try {
  const chosen = localStorage.getItem("servecast-theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
} catch { /* a page of a file may have no storage */ }
