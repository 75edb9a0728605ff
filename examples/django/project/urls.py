"""The pages of the project."""

from django.contrib import admin
from django.contrib.auth import views as auth
from django.urls import path
from reports import views

urlpatterns = [
    path("", views.page, name="reports"),
    path("reports/<int:pk>/delete", views.delete, name="delete"),
    path("reports/<int:pk>/pause", views.pause, name="pause"),
    path("reports/<int:pk>/run", views.run, name="run"),
    path("reports/<int:pk>/history", views.history, name="history"),
    path("admin/", admin.site.urls),
    path("login", auth.LoginView.as_view(), name="login"),
    path("logout", auth.LogoutView.as_view(next_page="login"), name="logout"),
]
